"""Statistics of admission control: counts, and recent rejections with their reasons."""

from collections import Counter, deque
from typing import Any

from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.http.messages import HttpRequest
from gateway.runtime.ids import new_id
from gateway.server.responder import request_id
from gateway.tenancy.admission.tenants import Tenant

MAX_REFUSALS = 100
MAX_NAME_BYTES = 128
"""Length of a client's id and of its model's name that is kept of a refusal."""


class AdmissionStats:
    """Admission counts, keyed by the tenant's metric label."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # and code
        self.tokens: Counter[tuple[str, str]] = Counter()  # and kind
        self.latest: deque[dict[str, Any]] = deque(maxlen=MAX_REFUSALS)

    def reject(
        self, request: InferenceRequest, tenant: Tenant, error: GatewayError, http: HttpRequest
    ) -> None:
        named = request_id(http)[1][:MAX_NAME_BYTES].decode("latin-1")
        self.refused[tenant.label, error.code] += 1
        self.latest.append(
            {
                "id": new_id(8),
                "request_id": named,
                "model": request.model[:MAX_NAME_BYTES],
                "tenant": tenant.name,
                "priority": request.priority or 0,
                "status": error.status,
                "error": error.code,
                "message": error.message,
                "retry_after_s": error.retry_after_s,
                "queued_s": round(request.queued_s, 3),
            }
        )
