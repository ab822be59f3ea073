"""Request that has ended, as the access log and traces are given it."""

from typing import Any

from msgspec import structs

from gateway.core.decision import Query
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.usage_reading import read_usage
from gateway.core.value import replace
from gateway.http.messages import HttpRequest
from gateway.observability.request_end import RequestEnd
from tests.support.fakes import decision

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = (b"traceparent", b"00-" + TRACE + b"-00f067aa0ba902b7-01")


def ended_request(*headers: tuple[bytes, bytes], **changes: Any) -> RequestEnd:
    usage = read_usage(
        b'{"usage":{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":48}}}'
    )
    request = InferenceRequest(
        RouteKind.CHAT, "/v1/chat/completions", b"", {"model": "m", "stream": True, "user": "somebody"}
    )
    request.tenant, request.queued_s = "acme", 0.25
    chosen = replace(decision("d1", "a:1", "b:1"), query=Query("m", 100, adapter="lora"), attempt=2)
    http = HttpRequest("POST", b"/v1/chat/completions?key=secret", list(headers))
    request_end = RequestEnd(http, request, chosen, "ended", 200, "", b"r1", 10.0, 10.3, 12.0, 0.5, usage)
    return structs.replace(request_end, **changes)
