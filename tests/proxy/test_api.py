"""Routes and their answers; tests/blackbox has the wire."""

import logging
from typing import Any, cast

import msgspec
import pytest

from gateway.core.errors import BodyTooLarge, GatewayError
from gateway.core.fleet import Fleet
from gateway.core.worker import ServedModel
from gateway.http.messages import Header, HttpRequest
from gateway.http.networks import Trusted
from gateway.observability.metrics import Metrics
from gateway.observability.request_end import OnEnd, RequestEnd
from gateway.proxy.api import Api
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.large_intake import Refuse
from gateway.server.responder import Exchange, Responder, request_id
from gateway.tenancy.admission.request_identity import HeaderNames
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.authenticator import Authenticator
from gateway.tenancy.auth.key_format import format_key_record, parse_key_file
from tests.support.fakes import worker


class Kept:
    """Responder that keeps the answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: Any = None

    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        self.status, self.headers, self.body = status, dict(headers), msgspec.json.decode(body)

    peer = "127.0.0.1"

    def fail(self, error: GatewayError, headers: list[Header]) -> None:
        self.send(error.status, headers, error.body())


class FakeDispatch:
    """Dispatch that takes every inference request, or raises `error`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.error: Exception | None = None

    def handle(
        self, http: HttpRequest, responder: Responder, refuse: Refuse, amend: object = None
    ) -> Exchange:
        return self.tunnel(http, responder)

    def tunnel(self, http: HttpRequest, responder: Responder, amend: object = None) -> Exchange:
        if self.error:
            raise self.error
        self.paths.append(http.path)
        return cast(Exchange, self)


class ApiWorld:
    def __init__(self, authenticator: Authenticator | None = None) -> None:
        self.fleet, self.metrics, self.dispatch = Fleet(), Metrics(), FakeDispatch()
        served = (
            ServedModel("org/name", "root", max_model_len=4096),
            ServedModel("tuned", "root", "tuned", None, "org/name"),
        )
        self.member = self.fleet.add(worker("w:1", *served))
        self.ends: list[RequestEnd] = []
        end_observers: list[OnEnd] = [self.ends.append]
        self.api = Api(
            cast(Dispatch, self.dispatch),
            self.fleet,
            self.metrics,
            end_observers=end_observers,
            authenticator=authenticator,
        )

    def ask(self, method: str, target: str, *headers: Header, is_upgrade: bool = False) -> Kept:
        kept = Kept()
        http = HttpRequest(method, target.encode(), list(headers), is_upgrade=is_upgrade)
        self.api.handle(http, cast(Responder, kept))
        return kept


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/ready", 200),
        ("GET", "/ready?model=org/name", 200),
        ("GET", "/ready?model=org%2Fname&x=1", 200),
        ("GET", "/ready?model=none", 503),
        ("GET", "/ready?" + "a=1&" * 1000, 400),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/org/name", 200),
        ("GET", "/v1/models/org%2Fname", 200),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/metrics", 404),
        ("GET", "/v1/realtime", 426),
        ("POST", "/v1/realtime", 405),
        ("GET", "http://gateway/health", 200),
    ],
)
def test_each_route_has_its_status(world: ApiWorld, method: str, target: str, status: int) -> None:
    kept = world.ask(method, target, (b"x-request-id", b"7"))
    assert kept.status == status
    assert kept.headers[b"x-request-id"] == b"7"
    assert world.metrics.responses == {status: 1}
    assert not world.dispatch.paths
    if status >= 400:
        assert set(kept.body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("headers", [[], [(b"x-request-id", b"7")]])
def test_a_rejected_request_is_observed_with_the_id_in_its_answer(
    world: ApiWorld, headers: list[Header]
) -> None:
    kept = world.ask("GET", "/none", *headers)
    (end,) = world.ends
    assert end.request_id == kept.headers[b"x-request-id"] != b""


def test_a_request_that_the_server_rejects_has_an_id_in_the_log(world: ApiWorld) -> None:
    http = HttpRequest("POST", b"/v1/completions", [])
    world.api.refused(http, BodyTooLarge("too large"))
    (end,) = world.ends
    assert end.request_id and end.request_id == request_id(http)[1], "that of its answer"


def test_inference_requests_go_to_dispatch(world: ApiWorld) -> None:
    kept = world.ask("POST", "/v1/completions?x=1")
    assert world.dispatch.paths == ["/v1/completions"]
    assert kept.status == 0
    assert world.metrics.responses == {}  # counted at its end


def test_a_websocket_goes_to_dispatch(world: ApiWorld) -> None:
    world.ask("GET", "/v1/realtime?model=m", is_upgrade=True)
    assert world.dispatch.paths == ["/v1/realtime"]


def test_a_plain_request_for_a_websocket_route_is_rejected(world: ApiWorld) -> None:
    assert world.ask("GET", "/health", is_upgrade=True).status == 501
    assert world.ask("GET", "/v1/realtime").headers[b"upgrade"] == b"websocket"
    assert world.dispatch.paths == []


def test_models_are_listed(world: ApiWorld) -> None:
    cards = {card["id"]: card for card in world.ask("GET", "/v1/models").body["data"]}
    assert (cards["org/name"]["root"], cards["org/name"]["max_model_len"]) == ("root", 4096)
    assert (cards["tuned"]["root"], cards["tuned"]["parent"]) == ("tuned", "org/name")
    world.member.is_up = False
    assert len(world.ask("GET", "/v1/models").body["data"]) == 2


def test_the_list_of_models_is_rendered_once_until_the_fleet_changes(world: ApiWorld) -> None:
    first = world.ask("GET", "/v1/models").body
    rendered = world.api._list
    assert world.ask("GET", "/v1/models").body == first == msgspec.json.decode(rendered)
    assert world.api._list is rendered
    world.fleet.add(worker("w:2", ServedModel("new", "new")))
    assert len(world.ask("GET", "/v1/models").body["data"]) == len(first["data"]) + 1


def test_an_unknown_model_lists_some_of_thousands(world: ApiWorld) -> None:
    world.fleet.add(worker("w:2", *(ServedModel(f"n{number}", "root") for number in range(4096))))
    answer = world.ask("GET", "/v1/models/none")
    assert answer.status == 404 and answer.body["error"]["message"].endswith(" more")


def test_readiness_follows_the_fleet(world: ApiWorld) -> None:
    world.member.is_up = False
    assert world.ask("GET", "/ready").status == 503
    assert world.ask("GET", "/health").status == 200
    world.member.is_up = True
    world.api.is_stopping = True
    assert world.ask("GET", "/ready").status == 503


@pytest.mark.parametrize(("path", "allowed"), [("/v1/completions", b"POST"), ("/health", b"GET, HEAD")])
def test_a_wrong_method_is_answered_with_allow(world: ApiWorld, path: str, allowed: bytes) -> None:
    assert world.ask("PATCH", path).headers[b"allow"] == allowed


def test_a_bug_is_answered_and_logged_without_the_body(
    world: ApiWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.dispatch.error = ZeroDivisionError("bug")
    with caplog.at_level(logging.ERROR):
        kept = world.ask("POST", "/v1/completions")
    assert (kept.status, kept.body["error"]["code"]) == (500, "internal_error")
    assert "bug" not in kept.body["error"]["message"]
    assert "POST /v1/completions raised; the client gets 500" in caplog.text


# authentication ---------------------------------------------------------------------------------------

KEY = make_key(bytes(6), bytes(32))


@pytest.fixture
def guarded() -> ApiWorld:
    names = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")
    authenticator = Authenticator(
        clock=lambda: 0.0,
        names=names,
        trusted=Trusted((), "--trust-headers-from"),
        salt_of=lambda tenant: None,
    )
    authenticator.set_ring(parse_key_file(format_key_record(KEY, bytes(16), "acme", ["tuned"]), "keys"))
    return ApiWorld(authenticator)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/messages"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tuned"),
        ("GET", "/v1/realtime"),
        ("GET", "/nothing"),
    ],
)
def test_without_a_key_the_answer_is_401_on_every_route(guarded: ApiWorld, method: str, target: str) -> None:
    kept = guarded.ask(method, target, is_upgrade="realtime" in target)
    assert (kept.status, kept.headers[b"www-authenticate"]) == (401, b"Bearer")
    assert kept.body["error"]["code"] == "missing_api_key"
    assert set(kept.body["error"]) == {"message", "type", "param", "code"}
    assert guarded.metrics.responses == {401: 1} and not guarded.dispatch.paths


def test_health_and_readiness_need_no_key(guarded: ApiWorld) -> None:
    assert guarded.ask("GET", "/health").status == guarded.ask("GET", "/ready").status == 200


def test_a_key_lists_and_uses_its_models_only(guarded: ApiWorld) -> None:
    shown = (b"x-api-key", KEY)
    assert [card["id"] for card in guarded.ask("GET", "/v1/models", shown).body["data"]] == ["tuned"]
    assert guarded.api._list == b""  # what is kept is everyone's
    assert guarded.ask("GET", "/v1/models/tuned", shown).status == 200
    hidden = guarded.ask("GET", "/v1/models/org/name", shown)
    assert (hidden.status, "root" in str(hidden.body)) == (404, False)
    guarded.ask("POST", "/v1/completions", shown)
    guarded.ask("GET", "/v1/realtime", shown, is_upgrade=True)
    assert guarded.dispatch.paths == ["/v1/completions", "/v1/realtime"]


def test_headers_of_an_untrusted_peer_are_ignored() -> None:
    names = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")
    ends = []

    def salt_of(tenant: str) -> str:
        ends.append(tenant)
        return "s"

    trusting = Authenticator(
        clock=lambda: 0.0,
        names=names,
        trusted=Trusted(["127.0.0.1"], "--trust-headers-from"),
        salt_of=salt_of,
    )
    ApiWorld(trusting).ask("GET", "/v1/models", (b"x-tenant", b"acme"))
    distrusting = Authenticator(
        clock=lambda: 0.0, names=names, trusted=Trusted((), "--trust-headers-from"), salt_of=salt_of
    )
    ApiWorld(distrusting).ask("GET", "/v1/models", (b"x-tenant", b"acme"))
    assert ends == ["acme", "anonymous"]
