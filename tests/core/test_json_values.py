"""Numbers that no float holds go to the engine as they came, and prompts are made of them as engines do."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from gateway.apis.to_chat import as_chat, dialect_of
from gateway.app import bundled_tokenizer
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import Boundless, decode, encode, encode_sorted
from gateway.core.multimodal import links
from gateway.core.request import InferenceRequest
from gateway.core.route_table import CHAT
from gateway.http.cache_report import asking
from gateway.requests.large_body import parse_large
from gateway.requests.media_uuid import scoped
from gateway.requests.parsing import BodyRules, parse_request
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.worker_tokens import tokenize_bodies

NOW = datetime(2024, 1, 1)
NUMBERS = ["1e400", "-1e400", "1E+309", "1.8e308", "9" * 400 + ".5", "1e99999999999999999999"]
SCHEMA = b'{"type":"object","properties":{"n":{"type":"number","maximum":%b}}}'
TOOLS = b'[{"type":"function","function":{"name":"f","parameters":%b}}]' % SCHEMA
TALK = b'"model":"m","messages":[{"role":"user","content":"x"}]'


@pytest.mark.parametrize("number", NUMBERS)
def test_number_is_read_as_an_infinity_and_written_as_a_number(number: str) -> None:
    value = decode(b'{"a":[%b,1.5,1,null]}' % number.encode())
    assert value == {"a": [float("-inf" if number[0] == "-" else "inf"), 1.5, 1, None]}
    for write in (encode, encode_sorted):
        written = write(value)
        assert b"e999" in written and decode(written) == value


def test_other_values_are_decoded_and_encoded_as_ever() -> None:
    value = {"a": [1, 2.5, "x", None, True, {"b": 10**30}]}
    assert decode(msgspec.json.encode(value)) == value and encode(value) == msgspec.json.encode(value)
    with pytest.raises(NotImplementedError):
        encode(object())


@pytest.mark.parametrize(
    "text", [b"[" + b"9" * 5000 + b"]", b"[NaN]", b"[Infinity]", b"[1e]", b"[+1]", b"[1e400"]
)
def test_what_is_no_json_or_no_engine_reads_is_refused(text: bytes) -> None:
    with pytest.raises(UNREADABLE):
        decode(text)


BODIES = {
    "a tool": (CHAT, b'{%b,"tools":%b}' % (TALK, TOOLS)),
    "a field": (CHAT, b'{%b,"temperature":%%b}' % TALK),
    "an object": (CHAT, b'{%b,"response_format":{"json_schema":{"maximum":%%b}}}' % TALK),
    "a template's argument": (CHAT, b'{%b,"chat_template_kwargs":{"n":%%b}}' % TALK),
    "an unknown field": (CHAT, b'{%b,"mine":[%%b]}' % TALK),
    "a message": (CHAT, b'{"model":"m","messages":[{"role":"user","content":"x","n":%b}]}'),
    "a completion": ("/v1/completions", b'{"model":"m","prompt":"x","logit_bias":{"1":%b}}'),
    "an embedding": ("/v1/embeddings", b'{"model":"m","input":"x","n":%b}'),
    "a message's tool": ("/v1/messages", b'{%b,"tools":[{"name":"f","input_schema":%b}]}' % (TALK, SCHEMA)),
    "a response": (
        "/v1/responses",
        b'{"model":"m","input":"x","tools":[{"name":"f","parameters":%b}]}' % SCHEMA,
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_body_goes_on_as_it_came(name: str, number: str) -> None:
    path, form = BODIES[name]
    body = form % number.encode()
    for parse in (parse_request, parse_large):
        assert parse(path, body).body == body
        assert parse(path, body, rules=BodyRules(models=["m"])).body == body
        request = parse(path, body, rules=BodyRules(salt="s"))
        assert number.encode() in request.body and decode(request.body)["cache_salt"] == "s"
        assert "inf" in str(parse(path, body).fields)


def test_fields_that_are_rewritten_keep_the_number() -> None:
    body = b'{%b,"vllm_xargs":{"kv_cache_report_mode":"full","n":1e400},"parameters":{"n":1e400}}' % TALK
    sent = parse_request(CHAT, body, rules=BodyRules(models=["m"])).body
    assert b"report_mode" not in sent and sent.count(b"e400") + sent.count(b"e999") == 2
    assert decode(asking(sent))["vllm_xargs"] == {"kv_cache_report_mode": "full", "n": float("inf")}
    image = b'{"type":"image_url","image_url":{"url":"data:,","n":1e400},"uuid":"u"}'
    assert b"1e400" in scoped(b'{"model":"m","messages":[{"role":"user","content":[%b]}]}' % image, b"s")


def test_conversation_with_such_a_number_is_known_again_by_its_messages() -> None:
    body = b'{%b,"tools":%b,"temperature":1e400}' % (TALK, TOOLS % b"1e400")
    request = parse_request(CHAT, body)
    assert request.messages is not None and len(request.messages.names) == 1
    efforts = [
        parse_request(CHAT, b'{%b,"reasoning_effort":%b}' % (TALK, each)) for each in (b"1e400", b"null")
    ]
    settings = {each.messages.setting for each in efforts if each.messages}
    assert len(settings) == 2, "an infinity is not null"


def test_prompt_and_the_workers_tokenize_have_the_number() -> None:
    prompts = PromptEncoder.load(bundled_tokenizer(), "{{ tools | tojson }}{{ n }}{{ messages[0].content }}")
    body = b'{%b,"tools":%b,"chat_template_kwargs":{"n":-1e400}}' % (TALK, TOOLS % b"1e400")
    request = parse_request(CHAT, body)
    text = prompts.render(request.fields, NOW)
    assert '"maximum": Infinity' in text and text.endswith("-infx"), "as Python's json and str write them"
    (asked,) = tokenize_bodies(request)
    assert decode(encode(asked)) == asked and b"1e999" in encode(asked)


def translated(path: str, body: bytes) -> InferenceRequest:
    prompts = PromptEncoder.load(bundled_tokenizer())
    return as_chat(parse_request(path, body), dialect_of(prompts, NOW))


@pytest.mark.parametrize("name", ["a message's tool", "a response"])
def test_chat_of_another_api_has_the_number(name: str) -> None:
    path, form = BODIES[name]
    if "response" in name:
        form = form.replace(b'{"name"', b'{"type":"function","name"')
    fields: dict[str, Any] = dict(translated(path, form % b"1e400").fields)
    found = fields["tools"][0]["function"]["parameters"]["properties"]["n"]["maximum"]
    assert isinstance(found, Boundless) and found > 0


def test_media_beside_such_a_number_have_hashes_of_their_own() -> None:
    def name(value: object) -> object:
        image = {"type": "image_url", "image_url": {"url": "a", "n": value}}
        return links([{"role": "user", "content": [image]}], b"").hashes

    assert name(decode(b"1e400")) != name(None)


def test_integer_of_thousands_of_digits_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        parse_request(CHAT, b'{%b,"seed":%b}' % (TALK, b"9" * 5000))
