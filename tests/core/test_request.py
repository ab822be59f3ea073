import msgspec
import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.request import Kind, parse_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_a_body_passes_byte_for_byte() -> None:
    body = b'{ "model":"org/m", "messages":[{"role":"user","content":"\\u00e9"}], "new_field": 1.50 }'
    request = parse_request(CHAT, body)
    assert request.body is body
    assert (request.kind, request.model, request.stream) == (Kind.CHAT, "org/m", False)


def test_what_routing_reads() -> None:
    body = {"model": "m", "prompt": "x", "stream": True, "cache_salt": "s", "user": "u"}
    request = parse_request(COMPLETIONS, msgspec.json.encode(body))
    assert (request.stream, request.cache_salt, request.session) == (True, "s", "u")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b"{", None),
        (CHAT, b"", None),
        (CHAT, b"[1]", None),
        (CHAT, b'"x"', None),
        (CHAT, b'{"messages":[]}', "model"),
        (CHAT, b'{"model":"","messages":[]}', "model"),
        (CHAT, b'{"model":3,"messages":[]}', "model"),
        (CHAT, b'{"model":"m"}', "messages"),
        (CHAT, b'{"model":"m","messages":"hi"}', "messages"),
        (CHAT, b'{"model":"m","messages":["hi"]}', "messages[0]"),
        (CHAT, b'{"model":"m","messages":[{"role":"user"},{"content":"x"}]}', "messages[1].role"),
        (CHAT, b'{"model":"m","messages":[],"stream":"yes"}', "stream"),
        (CHAT, b'{"model":"m","messages":[],"cache_salt":1}', "cache_salt"),
        (COMPLETIONS, b'{"model":"m"}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":["a",1]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[1,-1]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[[1],"a"]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":{"a":1}}', "prompt"),
        (CHAT, b"[" * 100_000, None),
        (CHAT, b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
        (CHAT, b'{"model":"m","messages":[],"x":"\xff"}', None),
    ],
)
def test_bad_bodies_name_the_field(path: str, body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(path, body)
    assert caught.value.status == 400
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", ['"a"', '["a","b"]', "[1,2]", "[[1],[2,3]]", '""'])
def test_all_prompt_forms_are_taken(prompt: str) -> None:
    parse_request(COMPLETIONS, b'{"model":"m","prompt":%b}' % prompt.encode())


@pytest.mark.parametrize(
    "steering",
    [
        '"kv_transfer_params":{"remote_host":"10.0.0.9"}',
        '"kv\\u005ftransfer_params":{"do_remote_prefill":true}',
        '"bootstrap_host":"x"',
        '"bootstrap_room":[1,2]',
        '"disaggregated_params":{}',
        '"kv_cache_report_mode":"full"',
        '"vllm_xargs":{"kv_cache_report_mode":"full"}',
        '"kv_transfer_params":null,"kv_transfer_params":{"a":1}',
    ],
)
def test_fields_that_steer_an_engine_are_removed_and_the_rest_stays(steering: str) -> None:
    body = '{"model":"m","prompt":"x",' + steering + ',"temperature":0.50,"other":[1, 2]}'
    sent = parse_request(COMPLETIONS, body.encode()).body
    fields = msgspec.json.decode(sent)
    assert fields.pop("vllm_xargs", {}) == {}
    assert fields == {"model": "m", "prompt": "x", "temperature": 0.5, "other": [1, 2]}
    assert b"0.50" in sent


def test_other_xargs_stay() -> None:
    body = b'{"model":"m","prompt":"x","vllm_xargs":{"kv_cache_report_mode":"full","mine":1e3}}'
    assert b'{"mine":1e3}' in parse_request(COMPLETIONS, body).body


def test_routes_without_a_known_prompt_need_a_model_only() -> None:
    request = parse_request("/v1/embeddings", b'{"model":"e","input":["a"]}')
    assert (request.kind, request.model) == (Kind.PASS, "e")
