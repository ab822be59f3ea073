"""Headers by which gateways and clients steer a picker, under their old and new names.

    header                                             here
    x-llm-d-inference-fairness-id, x-gateway-…         tenant
    x-llm-d-inference-objective, x-gateway-…           priority, by the objective's name
    x-llm-d-slo-ttft-ms, x-slo-ttft-ms                 TTFT objective
    x-llm-d-model-name-rewrite, x-gateway-…            model of the body
    x-llm-d-slo-tpot-ms, x-slo-tpot-ms                 not read: decisions predict the first token only

They count only where Envoy is trusted to remove or set them (`epp.trust_headers`). No worker gets them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.body_text import MAX_GROWTH, as_utf8, encoding_of
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.epp.destination import SPOOFED
from gateway.http.messages import Header
from gateway.requests.model_alias import renamed
from gateway.requests.multipart import MARK
from gateway.tenancy.admission.request_identity import OBJECTIVE, HeaderNames

FAIRNESS: Final[tuple[bytes, bytes]] = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
SLO_TTFT_MS: Final[tuple[bytes, bytes]] = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
SLO_TPOT_MS: Final[tuple[bytes, bytes]] = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms")
MODEL: Final[tuple[bytes, bytes]] = (b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite")

CONTROL: Final = frozenset({*OBJECTIVE, *FAIRNESS, *SLO_TTFT_MS, *SLO_TPOT_MS, *MODEL})
"""Headers for pickers: not for workers."""

PICKERS: Final = CONTROL | SPOOFED
"""Headers that no worker gets."""

MAX_MODEL_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class ControlHeaders:
    """Values of the control headers, the new name before the old one; None where a header is missing."""

    objective: str | None = None
    fairness_id: bytes | None = None
    slo_ttft_ms: bytes | None = None
    model: str | None = None


def control_of(headers: Iterable[Header]) -> ControlHeaders:
    given = {name: value for name, value in headers if name in CONTROL and value}

    def first(names: tuple[bytes, bytes]) -> bytes | None:
        return given.get(names[0], given.get(names[1]))

    objective, model = first(OBJECTIVE), first(MODEL)
    return ControlHeaders(
        objective.decode("utf-8", "replace") if objective is not None else None,
        first(FAIRNESS),
        first(SLO_TTFT_MS),
        model.decode("utf-8", "replace")[:MAX_MODEL_CHARS] if model is not None else None,
    )


def as_declared(control: ControlHeaders, names: HeaderNames, objectives: Mapping[str, int]) -> list[Header]:
    """The same as the gateway's own identity headers. Objectives count up, the gateway's priorities down."""
    declared: list[Header] = []
    if control.fairness_id is not None:
        declared.append((names.tenant, control.fairness_id))
    if control.objective is not None:
        declared.append((names.priority, b"%d" % -objectives.get(control.objective, 0)))
    if control.slo_ttft_ms is not None:
        declared.append((names.slo_ttft_ms, control.slo_ttft_ms))
    return declared


def with_model(body: bytes, model: str) -> bytes:
    """The body with this model; as it is where it is no JSON object, which its reader will refuse."""
    if body[:2] == MARK:
        return body
    try:
        if (encoding := encoding_of(body)) is not None:
            body = as_utf8(body, encoding, int(len(body) * MAX_GROWTH))
        return renamed(body, model)
    except (InvalidRequest, *UNREADABLE):
        return body
