"""Rejections that admission control keeps for operators."""

from gateway.config.tenant_limits import TenantLimits
from gateway.core.errors import TooManyRequests
from gateway.core.request import InferenceRequest
from gateway.core.route_table import CHAT, RouteKind
from gateway.http.messages import HttpRequest
from gateway.server.responder import request_id
from gateway.tenancy.admission.stats import MAX_NAME_BYTES, AdmissionStats
from gateway.tenancy.admission.tenants import Tenant


def test_a_refusal_keeps_little_of_a_client_s_names() -> None:
    stats, error = AdmissionStats(), TooManyRequests("no", code="c", kind="k", wait_s=1.0)
    request = InferenceRequest(RouteKind.CHAT, CHAT, b"{}", {"model": "m" * 10_000})
    http = HttpRequest("POST", b"/", [(b"x-request-id", b"r" * 10_000)])
    stats.reject(request, Tenant("t", "t", TenantLimits(), 0.0), error, http)
    (kept,) = stats.latest
    assert (kept["model"], kept["request_id"]) == ("m" * MAX_NAME_BYTES, "r" * MAX_NAME_BYTES)


def test_a_refusal_has_the_id_of_its_answer() -> None:
    stats, error = AdmissionStats(), TooManyRequests("no", code="c", kind="k", wait_s=1.0)
    http = HttpRequest("POST", b"/", [])
    stats.reject(
        InferenceRequest(RouteKind.CHAT, CHAT, b"{}", {"model": "m"}),
        Tenant("t", "t", TenantLimits(), 0.0),
        error,
        http,
    )
    (kept,) = stats.latest
    assert kept["request_id"] and kept["request_id"].encode() == request_id(http)[1]
