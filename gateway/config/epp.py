"""Table `[epp]`: the endpoint picker for Envoy."""

from typing import Annotated

import msgspec

from gateway.config.options import Section, option


class EppSection(Section, frozen=True):
    port: Annotated[
        int,
        option(
            "Port of the endpoint picker (ext_proc over gRPC, plain and TLS) for Envoy and Gateway API "
            "gateways, at the address for clients; gateways expect 9002. 0: none.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    health_port: Annotated[
        int,
        option(
            "Port with the picker's gRPC health service alone; charts probe 9003. The picker's own port has "
            "it too. 0: none.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    cert_file: Annotated[
        str,
        option(
            "Certificate chain (PEM) of the picker's ports, for gateways that connect with TLS; reloaded "
            "when it changes. Default: a self-signed one, since gateways do not validate it.",
            "path",
        ),
    ] = ""
    key_file: Annotated[
        str,
        option(
            "Private key of that certificate, unencrypted PEM; default: in the same file.",
            "path",
        ),
    ] = ""
    only: Annotated[
        bool,
        option("Serve the picker without the port for clients, as `kvgate epp` does.", is_rare=True),
    ] = False
    fallbacks: Annotated[
        int,
        option(
            "Fallback workers after the chosen one in the destination, for Envoy's own retries. Not for "
            "ORIGINAL_DST clusters, as Envoy AI Gateway makes them: those answer 503 to a list.",
            "workers",
            ge=0,
            le=8,
        ),
    ] = 0
    trust_headers: Annotated[
        bool,
        option(
            "Trust headers of requests from Envoy and the decision service for tenant, priority and TTFT "
            "objective, and from Envoy for the model: x-llm-d-inference-fairness-id, -objective, "
            "x-llm-d-slo-ttft-ms, x-llm-d-model-name-rewrite, their older names, and those of [headers]. "
            "Safe only where Envoy or the caller removes these headers from its clients' requests.",
            is_rare=True,
        ),
    ] = False
    objectives: Annotated[
        list[str],
        option(
            "Priority of an inference objective that a header names, as in chat=10: higher goes first, as in "
            "InferenceObjective; 0 where a name is not listed.",
            "name=priority",
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
    prefill_header: Annotated[
        bool,
        option(
            "Name a prefill worker in x-prefiller-host-port where that lowers the TTFT; for decode "
            "workers with llm-d's sidecar, which sends the prefill leg.",
            is_rare=True,
        ),
    ] = False
    conformance: Annotated[
        bool,
        option(
            "Obey test-epp-endpoint-selection and report x-conformance-test-served-endpoint, as conformance "
            "tests of the Gateway API Inference Extension expect. Any client can then choose its worker.",
            is_rare=True,
        ),
    ] = False
    decision_expires_s: Annotated[
        float,
        option(
            "Timeout of the decision service for the next report about a decision; then the booking is "
            "released and counted as expired.",
            "seconds",
            is_rare=True,
            gt=0,
        ),
    ] = 300.0

    def __post_init__(self) -> None:
        objective_priorities(self.objectives)


def objective_priorities(given: list[str]) -> dict[str, int]:
    """Priorities by name of the objective, as given: higher goes first. Raises ValueError."""
    priorities = {}
    for each in given:
        name, equals, number = each.partition("=")
        try:
            priorities[name] = int(number)
        except ValueError:
            equals = ""
        if not name or not equals or abs(priorities[name]) > 2**31:
            raise ValueError(f"objectives: '{each}' is not name=priority, as in chat=10")
    return priorities
