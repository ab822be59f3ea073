"""Requests as routing sees them: each with one model, wherever it is named."""

import pytest

from gateway.core.caller import Caller
from gateway.core.errors import Forbidden, InvalidRequest, ModelMissing, NotSupported, UnknownModel
from gateway.core.worker import ServedModel, WorkerId
from gateway.http.messages import HttpRequest
from gateway.proxy.intake import request_of
from tests.support.blackbox.multipart_forms import KIND, form, part
from tests.support.worlds.exchanges import ExchangeWorld


def asked(
    target: str, body: bytes, caller: Caller | None = None, kind: bytes = b"application/json"
) -> HttpRequest:
    http = HttpRequest("POST", target.encode(), [(b"content-type", kind)], body)
    http.caller = caller
    return http


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    return ExchangeWorld(monkeypatch, "w:1")


def test_the_query_names_the_model_where_the_body_does_not(world: ExchangeWorld) -> None:
    http = asked("/v1/completions?model=m", b'{"prompt":"x"}')
    request = request_of(world.context, http)
    assert (request.model, request.body) == ("m", b'{"prompt":"x","model":"m"}')
    assert http.target == b"/v1/completions?model=m"


def test_an_empty_model_of_the_query_is_filled_in(world: ExchangeWorld) -> None:
    http = asked("/v1/completions?x=1&model=", b'{"prompt":"x","model":"m"}')
    assert request_of(world.context, http).model == "m"
    assert http.target == b"/v1/completions?x=1&model=m"


def test_a_request_without_a_model_or_with_two_is_rejected(world: ExchangeWorld) -> None:
    with pytest.raises(ModelMissing):
        request_of(world.context, asked("/v1/completions", b'{"prompt":"x"}'))
    with pytest.raises(InvalidRequest, match="name one of them"):
        request_of(world.context, asked("/v1/completions?model=n", b'{"prompt":"x","model":"m"}'))


def test_a_key_is_checked_for_the_model_that_is_forwarded(world: ExchangeWorld) -> None:
    caller = Caller("t", "k", ["m"])
    request = request_of(world.context, asked("/v1/completions?model=m", b'{"prompt":"x"}', caller))
    assert (request.tenant, request.body) == ("t", b'{"prompt":"x","model":"m"}')
    with pytest.raises(Forbidden):
        request_of(world.context, asked("/v1/completions?model=n", b'{"prompt":"x"}', caller))
    with pytest.raises(Forbidden, match="lora_path"):
        request_of(world.context, asked("/v1/embeddings", b'{"model":"m","lora_path":"n"}', caller))


@pytest.fixture
def with_adapter(world: ExchangeWorld) -> ExchangeWorld:
    names = ServedModel("m", "m"), ServedModel("ad1", "m", "ad1", None, "m", "m:ad1")
    world.context.router.fleet.serve(WorkerId("w:1"), names)
    return world


@pytest.mark.parametrize(
    "fields",
    [
        b'"model":"ad1"',
        b'"model":"m:ad1"',
        b'"model":"m","lora_path":"ad1"',
        b'"lora_path":"ad1","model":"ad1"',
    ],
)
def test_an_adapter_is_the_model_however_it_is_named(with_adapter: ExchangeWorld, fields: bytes) -> None:
    for caller in (None, Caller("t", "k", ["ad1"])):
        http = asked("/v1/completions", b'{"prompt":"x",%b}' % fields, caller)
        request = request_of(with_adapter.context, http)
        assert (request.model, request.body) == ("ad1", b'{"prompt":"x","model":"ad1"}')
        assert request.fields == {"prompt": "x", "model": "ad1"}
    with pytest.raises(Forbidden):
        http = asked("/v1/completions", b'{"prompt":"x",%b}' % fields, Caller("t", "k", ["m"]))
        request_of(with_adapter.context, http)


def test_a_query_names_the_adapter_as_the_body_does(with_adapter: ExchangeWorld) -> None:
    http = asked("/v1/completions?model=m%3Aad1", b'{"prompt":"x"}')
    assert request_of(with_adapter.context, http).body == b'{"prompt":"x","model":"ad1"}'
    assert http.target == b"/v1/completions?model=ad1"


def test_an_adapter_that_is_not_there_is_unknown(with_adapter: ExchangeWorld) -> None:
    for fields in (b'"model":"m","lora_path":"nix"', b'"model":"n","lora_path":"ad1"'):
        with pytest.raises(UnknownModel, match="does not exist"):
            request_of(with_adapter.context, asked("/v1/completions", b'{"prompt":"x",%b}' % fields))
    request = request_of(with_adapter.context, asked("/v1/completions", b'{"prompt":"x","model":"m:nix"}'))
    assert request.model == "m:nix"


def test_a_route_without_a_model_keeps_the_field(with_adapter: ExchangeWorld) -> None:
    request = request_of(with_adapter.context, asked("/generate", b'{"text":"x","lora_path":"ad1"}'))
    assert request.model == "ad1"
    assert request.fields["lora_path"] == "ad1"


def test_a_form_is_recognized_by_its_content_type(world: ExchangeWorld) -> None:
    path = "/v1/audio/transcriptions"
    body = form(part("model", b"m"))
    assert request_of(world.context, asked(path, body, kind=KIND)).body == body
    with pytest.raises(InvalidRequest, match="no form"):
        request_of(world.context, asked(path, b'{"model":"m"}', kind=KIND))
    with pytest.raises(NotSupported):
        request_of(world.context, asked(path, body, Caller("t", salt="s"), KIND))
