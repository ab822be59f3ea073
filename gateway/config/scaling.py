"""Table `[scaling]`: advice for autoscalers."""

from typing import Annotated

import msgspec

from gateway.config.options import REQUESTS, Section, option
from gateway.core.worker import Role

ROLES = {role.value: role for role in Role}


class ScalingSection(Section, frozen=True):
    port: Annotated[
        int,
        option(
            "Port of the external scaler for KEDA (gRPC, plain and TLS with the picker's certificate), at "
            "the address for clients. It needs processes = 1. 0: none.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    ttft_objective_s: Annotated[
        float,
        option(
            "TTFT objective for 90 % of the requests; advised numbers of workers meet it and the ITL "
            "objective.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 2.0
    itl_objective_s: Annotated[
        float,
        option(
            "ITL objective for 90 % of the answers, each by the mean over its tokens; the advised numbers of "
            "workers, and of prefill and decode workers, are those that meet it.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 0.1
    down_after_s: Annotated[
        float,
        option(
            "Time of lower demand after which fewer workers are advised; the number falls at most once in "
            "it.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 300.0
    models: Annotated[
        list[str],
        option(
            "Model that may have no workers, by a name that requests use, or NAME=ROLE (both, prefill, "
            "decode) for each role of a split fleet: its requests wait for the first worker from the "
            "gateway's start on. Models that workers served, or that KEDA asked for, need none.",
            "name",
            live=REQUESTS,
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
    zero_wait_s: Annotated[
        float,
        option(
            "Longest wait of a request for the first worker of its model, while none is up; then 503. It "
            "applies with an external scaler (port) or with models named. 0: 503 at once.",
            "seconds",
            ge=0,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 300.0
    zero_max_requests: Annotated[
        int,
        option(
            "Requests of one model that may wait for its first worker; beyond it the newest request of the "
            "longest queue of the last priority is rejected with 503.",
            "requests",
            ge=1,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 10_000
    zero_max_bytes: Annotated[
        int,
        option(
            "Memory of the requests of all models that wait for a first worker, in one process: bodies, "
            "and 8 KiB for each request.",
            "bytes",
            ge=1,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 256 << 20

    def __post_init__(self) -> None:
        roles_at_zero(self.models)

    @property
    def starts_from_zero(self) -> bool:
        """True if something is said to start workers: an external scaler, or named models."""
        return self.port > 0 or bool(self.models)


def roles_at_zero(given: list[str]) -> list[tuple[str, Role]]:
    """Models that may have no workers, with their roles: NAME, or NAME=ROLE. Raises ValueError."""
    found = []
    for each in given:
        name, _, role = each.rpartition("=") if "=" in each else (each, "", Role.BOTH.value)
        if not name or role not in ROLES:
            raise ValueError(f"scaling_models: '{each}' is not NAME or NAME=ROLE; roles: {', '.join(ROLES)}")
        found.append((name, ROLES[role]))
    return found
