"""Large bodies: the same request as the usual parser makes, without objects for their content."""

import json
from typing import Any

import msgspec
import pytest

from gateway.core.errors import Forbidden, InvalidRequest, ModelMissing
from gateway.requests import large_body
from gateway.requests.large_body import (
    DENSE_BYTES,
    MAX_MARKS,
    decode_large,
    is_crowded,
    is_large,
    parse_large,
)
from gateway.requests.outline import Outline
from gateway.requests.parsing import BodyRules, parse_request

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MB = 1 << 20
TURN = {"role": "user", "content": "Hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


BODIES = {
    "chat": (CHAT, body(messages=[{"role": "system", "content": "a b" * MB}, TURN], stream=True, user="u")),
    "quotes": (CHAT, body(messages=[{"role": "user", "content": '"a' * MB}], n=2)),
    "tools": (CHAT, body(messages=[TURN] * 1000, tools=[{"function": {"name": "f" * MB}}])),
    "completion": (COMPLETIONS, body(prompt="a" * MB, priority=3, cache_salt="s", truncate_prompt_tokens=5)),
    "texts": (COMPLETIONS, body(prompt=["a" * MB, "b"], echo=True)),
    "ids": (COMPLETIONS, body(prompt=[1, 2, 3] * 1000)),
    "responses": (RESPONSES, body(input="a" * MB, store=True)),
    "embeddings": ("/v1/embeddings", body(input=["a" * MB])),
    "steering": (
        COMPLETIONS,
        body(prompt="a" * MB, kv_transfer_params={}, vllm_xargs={"bootstrap_host": "h"}),
    ),
}
READ = (
    *("kind", "path", "model", "body", "stream", "cache_salt", "session", "may_ask_usage", "may_split"),
    *("reads_cache", "priority", "given_priority", "may_repeat", "is_cut", "num_new_bytes"),
)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    "options", [{}, {"salt": "t"}, {"keeps_transfer": True}, {"models": {"m"}}, {"model": "m"}]
)
def test_a_large_body_makes_the_same_request(name: str, options: dict[str, Any]) -> None:
    path, given = BODIES[name]
    if options.get("salt") and path == "/v1/embeddings":
        return
    rules = BodyRules(**options)
    found, expected = parse_large(path, given, rules=rules), parse_request(path, given, rules=rules)
    for attribute in READ:
        assert getattr(found, attribute) == getattr(expected, attribute), attribute
    if name != "steering":  # there `fields` may still have fields that are not sent
        assert found.fields == expected.fields
    assert not found.is_crowded
    if found.messages is not None and expected.messages is not None:
        assert found.messages.names == expected.messages.names
        assert found.messages.decode(0) == expected.messages.decode(0)


def test_known_messages_are_found_in_a_large_body() -> None:
    given = body(messages=[{"role": "user", "content": '"' * MB}, TURN])
    first = parse_large(CHAT, given).messages
    assert first is not None
    again = parse_large(CHAT, given, {first.names[0]}).messages
    assert again is not None and (first.num_known, again.num_known) == (0, 1)
    assert list(again.decode(1)) == [TURN]


@pytest.mark.parametrize(
    ("path", "given", "fault"),
    [
        (CHAT, body(messages="a" * MB), "'messages' must be a list"),
        (CHAT, body(messages=[TURN, "a" * MB]), r"'messages\[1\]' must be an object with a role"),
        (CHAT, body(x="a" * MB), "messages parameter"),
        (COMPLETIONS, body(prompt={"a": "a" * MB}), "'prompt' must be"),
        (COMPLETIONS, body(prompt="a" * MB)[:-1], "not valid JSON"),
        (COMPLETIONS, b"[" + body(prompt="a" * MB) + b"]", "not valid JSON"),
        (COMPLETIONS, b"[" * MB, "not valid JSON"),
        (COMPLETIONS, body(prompt="hi", user="a" * MB), "'user' is longer than"),
        (COMPLETIONS, body(prompt="hi", lora_path="a" * MB), "'lora_path' is longer than"),
        (COMPLETIONS, body(prompt="hi", lora_path=["a" * MB]), "'lora_path' is longer than"),
        (COMPLETIONS, body(prompt="hi", stream=1, x="a" * MB), "'stream' must be a boolean"),
    ],
)
def test_a_wrong_field_is_named(path: str, given: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        parse_large(path, given)


def test_the_model_of_a_large_body_is_required_bounded_and_checked_against_the_key() -> None:
    with pytest.raises(ModelMissing):
        parse_large(COMPLETIONS, json.dumps({"prompt": "a" * MB}).encode())
    sent = parse_large(
        COMPLETIONS, json.dumps({"model": "", "prompt": "a" * MB}).encode(), rules=BodyRules(model="q")
    )
    assert (sent.model, msgspec.json.decode(sent.body)["model"]) == ("q", "q")
    with pytest.raises(InvalidRequest, match="longer than"):
        parse_large(COMPLETIONS, json.dumps({"model": "a" * MB, "prompt": ""}).encode())
    with pytest.raises(Forbidden):
        parse_large(COMPLETIONS, body(prompt="a" * MB, lora_path="x"), rules=BodyRules(models={"m"}))


def test_a_field_of_too_many_values_is_rejected() -> None:
    given = body(messages=[TURN], tools=[{"a": [{}] * 100}] * 3_000)
    request = parse_large(CHAT, given)
    assert (request.is_crowded, request.messages, request.body) == (True, None, given)


def test_json_syntax_within_texts_is_ignored() -> None:
    prose = body(prompt='{"a", \\ [' * (MB // 2))
    assert not is_crowded(Outline(prose), len(prose))
    commas = body(messages=[{"role": "user", "content": "a," * 3 * MB}])
    assert not parse_large(CHAT, commas).is_crowded


def test_many_fields_beside_the_prompt_are_rejected() -> None:
    given = b'{"model":"m","prompt":"hi",' + b",".join(b'"%d":"%b"' % (n, b"a" * 60_000) for n in range(40))
    with pytest.raises(InvalidRequest, match="other than its prompt are over 2097152 bytes"):
        parse_large(COMPLETIONS, given + b"}")


@pytest.mark.slow
def test_token_ids_are_counted_without_decoding_them() -> None:
    ids = [1, 22, 333] * MB
    assert parse_large(COMPLETIONS, body(prompt=ids)).num_ids == len(ids)
    assert parse_large(COMPLETIONS, body(prompt="1,2", x="a" * MB)).num_ids == 0
    assert parse_large(COMPLETIONS, body(prompt=[ids, ids])).num_ids == 0
    assert parse_large("/v1/embeddings", body(input=ids)).num_ids == 0


@pytest.mark.parametrize(
    ("prompt", "is_one"),
    [
        (["a" * MB], True),
        (["a" * MB, "b"], False),
        ([1] * MB, True),
        ([[1] * MB], True),
        ([[1] * MB, [2]], False),
    ],
)
def test_a_list_of_several_prompts_is_recognized(prompt: object, is_one: bool) -> None:
    given = body(prompt=prompt, stream=True)
    found, expected = parse_large(COMPLETIONS, given), parse_request(COMPLETIONS, given)
    assert found.may_split == expected.may_split == is_one
    assert found.may_ask_usage == expected.may_ask_usage == is_one
    assert found.num_prompts == expected.num_prompts and found.has_list_prompt and expected.has_list_prompt


def test_a_changed_body_keeps_its_long_fields() -> None:
    tools = [{"function": {"name": "f" * MB}}]
    given = body(messages=[TURN], tools=tools, kv_transfer_params={})
    sent = parse_large(CHAT, given, rules=BodyRules(salt="s")).body
    assert json.loads(sent) == {"model": "m", "messages": [TURN], "tools": tools, "cache_salt": "s"}
    twice = b'{"model":"m","prompt":"%b","prompt":"hi","kv_transfer_params":{}}' % (b"a" * MB)
    assert json.loads(parse_large(COMPLETIONS, twice).body) == {"model": "m", "prompt": "hi"}


def test_a_second_model_is_found_in_a_large_body() -> None:
    given = b'{"model":"m","prompt":"%b","mod\\u0065l":"n"}' % (b"a" * MB)
    with pytest.raises(InvalidRequest, match="2 times"):
        parse_large(COMPLETIONS, given, rules=BodyRules(models={"m", "n"}))
    assert parse_large(COMPLETIONS, given).model == "n"


def test_a_conversation_keeps_its_message_names_when_it_becomes_large() -> None:
    """Names of its messages are those that its shorter beginning had."""
    tools = [{"function": {"name": "f", "parameters": {"a": [1, 2]}}}] * 2_000
    messages = [{"role": "user", "content": "a" * 300_000}, TURN]
    short = parse_request(CHAT, body(messages=messages, tools=tools)).messages
    assert short is not None
    longer = body(messages=[*messages, {"role": "assistant", "content": "b" * MB}, TURN], tools=tools)
    again = parse_large(CHAT, longer, {short.names[1]}).messages
    assert again is not None and again.num_known == 2


@pytest.mark.parametrize("message", [1, "a", {"content": "a" * MB}, {"role": 1, "content": "a" * MB}])
def test_a_message_without_a_role_is_rejected(message: object) -> None:
    with pytest.raises(InvalidRequest, match="role"):
        parse_large(CHAT, body(messages=[TURN, message], x="a" * MB))


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate"])
def test_an_adapter_beside_the_model_is_read(path: str) -> None:
    request = parse_large(path, body(prompt="a" * MB, lora_path="ad1"))
    sent = json.loads(request.body)
    assert request.adapter == "ad1" and len(sent["prompt"]) == MB
    assert sent.get("lora_path") == (None if path == COMPLETIONS else "ad1")


def test_a_body_is_large_by_its_size_or_by_its_values() -> None:
    """Prose and code have a mark in thirty bytes, lists of small values one in two."""
    dense, sparse = body(x=[1] * (MAX_MARKS + 10)), body(x="def f(a, b): return a\n" * (DENSE_BYTES // 8))
    assert len(dense) < DENSE_BYTES and not is_large(dense)
    assert is_large(dense + b" " * DENSE_BYTES)
    assert not is_large(sparse) and is_large(sparse + b" " * MB)
    assert is_large(b"--form" + sparse) and not is_large(b"--form")


@pytest.mark.parametrize("unit", ["1", "{}", "[]", '"a"', "null"])
def test_fields_that_nothing_reads_are_not_decoded(unit: str) -> None:
    """A short one stays JSON, a long one is stood in for: decoders keep the interpreter lock to their end."""
    short, long = (f"[{','.join([unit] * num)}]".encode() for num in (2_000, 200_000))
    given = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"y":%b,"z":%b,"n":1}' % (short, long)
    request = parse_large(CHAT, given, rules=BodyRules(models={"m"}))
    assert request.body is given and request.fields["n"] == 1
    assert request.fields["messages"] == [{"role": "user", "content": "hi"}]
    assert len(request.fields["y"]) == 2_000 and len(request.fields["z"]) <= 1


def test_values_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a decoder takes more than one message, text or window of numbers."""
    sizes: list[int] = []

    def decode(raw: Any) -> Any:
        sizes.append(memoryview(raw).nbytes)
        return msgspec.json.decode(raw)

    monkeypatch.setattr(large_body, "decode_any", decode)
    ids, texts = [*range(100_000)] * 10, ["a" * 50_000] * 100
    for path, fields in (
        (COMPLETIONS, {"prompt": ids}),
        (COMPLETIONS, {"prompt": texts}),
        (CHAT, {"messages": [{"role": "user", "content": each} for each in texts]}),
        (RESPONSES, {"input": [{"role": "user", "content": each} for each in texts]}),
    ):
        sizes.clear()
        given = body(**fields)
        assert decode_large(given) == json.loads(given), path
        assert max(sizes) < 80_000, path


def test_broken_numbers_are_rejected() -> None:
    for broken in (b"1,,2", b"1,2,", b"1 2"):
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            decode_large(b'{"model":"m","prompt":[%b%b]}' % (b"1," * 70_000, broken))
