"""Fields with which a client could steer an engine are removed, checked against its key, or rejected."""

import msgspec
import pytest

from gateway.core.errors import Forbidden, InvalidRequest
from gateway.requests.field_judgement import JUDGED, XARGS, Judgement
from gateway.requests.parsing import BodyRules, parse_request
from gateway.requests.steering import behind, has_transfer, unsteered, value_of


def sent(body: bytes, *, keeps_transfer: bool = False, models: set[str] | None = None) -> bytes:
    top = msgspec.json.decode(body)
    return unsteered(top, body, keeps_transfer=keeps_transfer, models=models)


def test_a_body_without_steering_fields_is_the_same_object() -> None:
    body = b'{"model":"m", "temperature":0.50, "new_field":1, "vllm_xargs":{"mine":1e3}}'
    assert sent(body) is body
    assert sent(body, models={"m"}) is body


@pytest.mark.parametrize("name", [*JUDGED, "bootstrap_new"])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_each_field_is_treated_as_it_is_judged(name: str, keeps: bool, inside: bool) -> None:
    if name == XARGS:
        return
    fields = {"vllm_xargs": {name: 1.5, "x": 1}} if inside else {name: 1.5, "x": 1}
    judgement = JUDGED.get(name, Judgement.TRANSFER)
    is_gone = judgement in (Judgement.REMOVED, Judgement.NAME) or (
        judgement is Judgement.TRANSFER and not keeps
    )
    left = msgspec.json.decode(sent(msgspec.json.encode(fields), keeps_transfer=keeps))
    assert (left[XARGS] if inside else left) == ({"x": 1} if is_gone else {name: 1.5, "x": 1})
    assert has_transfer(fields) is (judgement is Judgement.TRANSFER and not inside)


@pytest.mark.parametrize(
    "name",
    ["Model", "MODEL", "moDel", "Lora_Path", "EC_transfer_params", "Bootstrap_Host", "BOOTSTRAP_x",
     "Cache_Salt", "\u212av_transfer_params", "me\u017f\u017fages", "PRIORITY"],
)  # fmt: skip
def test_other_capitalizations_of_a_guarded_name_are_rejected(name: str) -> None:
    for body in ({"model": "m", name: 1}, {"model": "m", "vllm_xargs": {name: 1}}):
        with pytest.raises(InvalidRequest) as caught:
            sent(msgspec.json.encode(body))
        assert caught.value.param == name


def test_other_capitalizations_of_other_names_pass() -> None:
    body = b'{"model":"m","Temperature":1,"userId":2,"modelx":3}'
    assert sent(body) is body


@pytest.mark.parametrize("value", ['"ad1"', '["ad1","ad1"]', "null"])
def test_a_key_reaches_its_adapters(value: str) -> None:
    body = b'{"model":"m","lora_path":%b}' % value.encode()
    assert sent(body, models={"m", "ad1"}) == body
    assert sent(body) is body


@pytest.mark.parametrize("field", ["lora_path", "adapters", "draft_model", "lora_request", "vllm_xargs"])
@pytest.mark.parametrize(
    "value",
    ['"ad2"', '["ad1","ad2"]', '["ad1",null]', "1", '{"lora_name":"ad1","lora_path":"/x"}', "[]", "[1]"],
)
def test_a_key_reaches_no_other_adapter(field: str, value: str) -> None:
    inner = f'{{"lora_path":{value}}}' if field == "vllm_xargs" else value
    body = f'{{"model":"m","{field}":{inner}}}'.encode()
    with pytest.raises(Forbidden) as caught:
        sent(body, models={"m", "ad1"})
    assert (caught.value.status, caught.value.code) == (403, "model_not_allowed")
    assert sent(body) == body


def test_an_adapter_named_twice_is_forwarded_once() -> None:
    body = b'{"lora_path":"ad2","model":"m","lora_path":"ad1"}'
    assert sent(body, models={"m", "ad1"}) == b'{"lora_path":"ad1","model":"m"}'


@pytest.mark.parametrize(
    ("given", "priority", "goes_on"),
    [
        ("3", 0, "3"), ("0", 0, "0"), ("-1", 0, "0"), ("-1", -1, "-1"), ("3", 5, "5"), ("-1.0", 0, "0"),
        ("0.25", 0, "0.25"), ('"-1"', 0, "0"), ("true", 0, "0"),
    ],
)  # fmt: skip
def test_a_priority_in_a_body_is_no_higher_than_the_admitted_one(
    given: str, priority: int, goes_on: str
) -> None:
    body = b'{"priority":%b,"x":0.50}' % given.encode()
    priority_in_body = msgspec.json.decode(body)["priority"]
    assert behind(body, priority_in_body, priority) == b'{"priority":%b,"x":0.50}' % goes_on.encode()


@pytest.mark.parametrize("inside", [False, True])
def test_an_unreadable_value_of_a_guarded_field_is_rejected(inside: bool) -> None:
    digits = b"9" * 5000
    field = b'"vllm_xargs":{"lora_path":%b}' % digits if inside else b'"lora_path":%b' % digits
    with pytest.raises(InvalidRequest, match="'lora_path' cannot be read"):
        value_of("lora_path", msgspec.Raw(digits))
    with pytest.raises(InvalidRequest):
        parse_request(
            "/v1/embeddings", b'{"model":"m","input":"a",%b}' % field, rules=BodyRules(models={"m"})
        )


def test_an_adapter_within_parameters_is_checked_against_the_key() -> None:
    for value in ("ad1", None, ["ad1"]):
        body = msgspec.json.encode({"inputs": "x", "parameters": {"adapter_id": value, "top_k": 3}})
        assert msgspec.json.decode(sent(body, models={"m", "ad1"})) == msgspec.json.decode(body)
    other = b'{"inputs":"x","parameters":{"adapter_id":"ad1"},"parameters":{"adapter_id":"ad2"}}'
    with pytest.raises(Forbidden):
        sent(other, models={"m", "ad1"})
    with pytest.raises(Forbidden):
        sent(b'{"parameters":{"adapter_id":"ad1","adapter_id":"ad2"}}', models={"m", "ad1"})
    twice = sent(b'{"parameters":{"adapter_id":"ad2"},"parameters":{"adapter_id":"ad1"}}', models={"ad1"})
    assert twice == b'{"parameters":{"adapter_id":"ad1"}}'
    for odd in (b'{"parameters":null}', b'{"parameters":[1]}'):
        assert sent(odd, models={"m"}) == odd
    assert sent(other) is other, "a key for all models"
