"""Rewrites of a request's model: in its body, its form and its query."""

import json
from typing import Any

import pytest

from gateway.core.caller import Caller
from gateway.core.errors import Forbidden, InvalidRequest
from gateway.core.pool_objects import ModelRewrites, WeightedModels
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, WorkerId
from gateway.http.messages import HttpRequest
from gateway.proxy.intake import request_of
from tests.support.blackbox.multipart_forms import KIND, form, part
from tests.support.worlds.exchanges import ExchangeWorld

RULES = ModelRewrites(
    {
        "chat": WeightedModels.of([("m", None)]),
        "split": WeightedModels.of([("m", 1), ("n", 1)]),
        "tuned": WeightedModels.of([("ad1", None)]),
    }
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    made = ExchangeWorld(monkeypatch, "w:1")
    names = ServedModel("m", "m"), ServedModel("ad1", "m", "ad1", None, "m", "m:ad1")
    made.context.router.fleet.serve(WorkerId("w:1"), names)
    made.context.objects.rewrites = RULES
    return made


def asked(
    world: ExchangeWorld,
    model: str,
    target: str = "/v1/completions",
    *headers: tuple[bytes, bytes],
    caller: Caller | None = None,
    **fields: Any,
) -> tuple[InferenceRequest, HttpRequest]:
    body = json.dumps({"model": model, "prompt": "x"} | fields).encode()
    http = HttpRequest("POST", target.encode(), [(b"content-type", b"application/json"), *headers], body)
    http.caller = caller
    return request_of(world.context, http), http


def test_the_worker_s_name_takes_the_place_of_the_client_s(world: ExchangeWorld) -> None:
    request, http = asked(world, "chat", "/v1/completions?model=chat&x=1", max_tokens=7)
    assert request.model == "m"
    assert json.loads(request.body) == {"model": "m", "prompt": "x", "max_tokens": 7}
    assert http.target == b"/v1/completions?x=1&model=m"


def test_other_names_stay_byte_for_byte(world: ExchangeWorld) -> None:
    request, http = asked(world, "m")
    assert (request.model, request.body) == ("m", http.body)


def test_a_form_is_rewritten_too(world: ExchangeWorld) -> None:
    body = form(part("model", b"chat"), part("file", b"sound", '; filename="a.wav"'))
    http = HttpRequest("POST", b"/v1/audio/transcriptions", [(b"content-type", KIND)], body)
    request = request_of(world.context, http)
    assert request.model == "m" and b"\r\n\r\nm\r\n" in request.body and b"chat" not in request.body


def test_a_session_keeps_its_model_and_so_does_a_body_that_is_sent_again(world: ExchangeWorld) -> None:
    for n in range(20):
        header = (b"x-session-id", b"session-%d" % n)
        turns = {asked(world, "split", "/v1/completions", header, prompt="x" * t)[0].model for t in range(4)}
        assert len(turns) == 1
    again = [[asked(world, "split", prompt=str(n))[0].model for n in range(20)] for _ in range(2)]
    assert again[0] == again[1] and set(again[0]) == {"m", "n"}


def test_a_key_is_checked_for_the_name_that_the_client_gives(world: ExchangeWorld) -> None:
    request, _ = asked(world, "chat", caller=Caller("t", "k", ["chat"]))
    assert request.model == "m"
    with pytest.raises(Forbidden):
        asked(world, "chat", caller=Caller("t", "k", ["m"]))


def test_a_route_without_a_model_reaches_no_adapter(world: ExchangeWorld) -> None:
    with pytest.raises(InvalidRequest, match="the adapter 'ad1' cannot be used"):
        asked(world, "tuned", "/encode?model=tuned")
