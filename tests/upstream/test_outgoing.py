"""Requests as workers get them; `tests/http/test_headers.py` has the headers."""

from dataclasses import replace

import pytest

from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.worker import Worker
from gateway.http.messages import HttpRequest
from gateway.upstream.outgoing import Outgoing
from gateway.upstream.pools import Pools
from tests.support.fakes import worker
from tests.support.transports import FakeLoop

BODY = b'{"model":"fast","prompt":"x"}'


@pytest.fixture
def outgoing(monkeypatch: pytest.MonkeyPatch) -> Outgoing:
    FakeLoop.install(monkeypatch)
    fleet = Fleet({"fast": "m"})
    fleet.add(worker("w:1"))
    return Outgoing(fleet, Pools())


def body(outgoing: Outgoing, model: str, sent: bytes, to: Worker) -> bytes:
    return outgoing.body(
        InferenceRequest(RouteKind.COMPLETION, "/v1/completions", sent, {"model": model}), to
    )


def test_a_worker_gets_its_own_name_of_the_model(outgoing: Outgoing) -> None:
    to = worker("w:1")
    assert body(outgoing, "fast", BODY, to) == b'{"model":"m","prompt":"x"}'
    assert body(outgoing, "m", BODY, to) == BODY
    assert body(outgoing, "fast", b"", to) == b""
    for target, sent in ((b"/v1/x?model=fast", b"/v1/x?model=m"), (b"/v1/x", b"/v1/x")):
        head = outgoing.head(HttpRequest("POST", target, []), "fast", to, 7, b"id")
        assert (head.method, head.target) == ("POST", sent)
        assert {(b"content-length", b"7"), (b"x-request-id", b"id")} <= set(head.headers)


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (b'{"text":"a"}', b'{"text":"a","routed_dp_rank":3}'),
        (b' {"a":{}} \n', b' {"a":{},"routed_dp_rank":3}'),
        (b"{ }", b'{ "routed_dp_rank":3}'),
        (b"", b""),
    ],
)
def test_the_native_route_names_the_rank_in_its_body(outgoing: Outgoing, sent: bytes, got: bytes) -> None:
    """SGLang reads no header there."""
    request = InferenceRequest(RouteKind.PASS, "/generate", sent, {"model": "m"})
    assert outgoing.body(request, replace(worker("w:1"), dp_rank=3, dp_size=4)) == got
    assert outgoing.body(request, worker("w:1")) == sent
    assert body(outgoing, "m", BODY, replace(worker("w:1"), dp_rank=3, dp_size=4)) == BODY


def test_an_upgrade_has_no_body(outgoing: Outgoing) -> None:
    http = HttpRequest("GET", b"/v1/realtime?model=fast", [], is_upgrade=True)
    head = outgoing.upgrade_head(http, "fast", worker("w:1"), b"id")
    assert (head.method, head.target) == ("GET", b"/v1/realtime?model=m")
    assert (b"upgrade", b"websocket") in head.headers and b"content-length" not in dict(head.headers)
