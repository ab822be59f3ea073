"""Bodies with all that is beside them: headers, query, caller and fleet. `tests/proxy/test_intake.py` has the
rules of models and keys."""

import msgspec
import pytest

from gateway.core.caller import Caller
from gateway.core.decode_errors import LARGE
from gateway.core.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidRequest,
    ModelMissing,
    NotSupported,
    UnknownModel,
)
from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, WorkerId
from gateway.http.messages import HttpRequest
from gateway.requests.client_body import judge, parse_body, sole_model
from tests.support.blackbox.multipart_forms import KIND, form, part
from tests.support.fakes import worker

CHAT, FORMS = "/v1/chat/completions", "/v1/audio/transcriptions"
BODY = b'{"model":"m","messages":[]}'
NAMES = (b"x-session-id", b"sid")


def asked(body: bytes, path: str = CHAT, **headers: bytes) -> HttpRequest:
    named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return HttpRequest("POST", path.encode(), named, body)


def parsed(http: HttpRequest, max_bytes: int = 1 << 26, default: str | None = None) -> InferenceRequest:
    is_large = len(http.body) >= LARGE
    return parse_body(
        http, frozenset(), None, default, max_bytes=max_bytes, keeps_transfer=False, is_large=is_large
    )


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.add(worker("w:1"))
    fleet.serve(WorkerId("w:1"), (ServedModel("m", "m"), ServedModel("ad1", "m", "ad1", None, "m", "m:ad1")))
    return fleet


def test_a_body_in_utf_16_goes_on_in_utf_8_within_its_bound() -> None:
    http = asked(BODY.decode().encode("utf-16"))
    assert parsed(http).body == http.body == BODY
    with pytest.raises(BodyTooLarge):
        parsed(asked(BODY.decode().encode("utf-16")), max_bytes=len(BODY) - 1)


def test_a_large_body_is_read_by_its_outline() -> None:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "a" * LARGE}]})
    assert parsed(asked(body)).is_large and not parsed(asked(BODY)).is_large


def test_a_caller_s_salt_replaces_the_client_s_and_no_form_takes_one() -> None:
    http = asked(BODY)
    http.caller = Caller("t", salt="OURS")
    assert parsed(http).cache_salt == "OURS"
    upload = asked(form(part("model", b"m")), FORMS, content_type=KIND)
    assert parsed(upload).model == "m"
    upload.caller = http.caller
    with pytest.raises(NotSupported):
        parsed(upload)


def test_json_that_an_engine_could_read_as_a_form_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no form"):
        parsed(asked(b'{"model":"m"}', FORMS, content_type=KIND))


def test_a_fleet_of_one_model_needs_no_name_where_the_route_has_no_place_for_one(fleet: Fleet) -> None:
    http = asked(b'{"text":"x"}', "/generate")
    with pytest.raises(ModelMissing):
        parsed(http)
    assert parsed(http, default=sole_model(http, fleet)).model == "m"
    with pytest.raises(ModelMissing):
        sole_model(asked(BODY), fleet)


@pytest.mark.parametrize("fields", [b'"model":"m","lora_path":"ad1"', b'"model":"m:ad1"'])
def test_an_adapter_that_is_named_beside_the_model_takes_its_place(fields: bytes, fleet: Fleet) -> None:
    http = asked(b'{%b,"prompt":"x"}' % fields, "/v1/completions")
    request = judge(http, fleet, None, parsed(http), NAMES)
    assert (request.model, msgspec.json.decode(request.body)["model"]) == ("ad1", "ad1")


def test_an_adapter_that_does_not_exist_is_named(fleet: Fleet) -> None:
    http = asked(b'{"model":"m","lora_path":"none","prompt":"x"}', "/v1/completions")
    with pytest.raises(UnknownModel, match="the adapter 'none' of 'm' does not exist"):
        judge(http, fleet, None, parsed(http), NAMES)


def test_a_request_has_its_caller_s_tenant_and_its_header_s_session(fleet: Fleet) -> None:
    http = asked(BODY, x_session_id=b"s")
    http.caller = Caller("t", "k", ["m"])
    request = judge(http, fleet, None, parsed(http), NAMES)
    assert (request.tenant, request.session) == ("t", "s")
    http.caller = Caller("t", "k", ["other"])
    with pytest.raises(Forbidden):
        judge(http, fleet, None, parsed(http), NAMES)
