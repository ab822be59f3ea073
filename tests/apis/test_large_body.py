"""Large bodies: the same request as the parser of all others makes, without objects for what they hold."""

import json
from typing import Any

import msgspec
import pytest

from gateway.apis import large_body
from gateway.apis.large_body import LONG_BYTES, fields_of, is_crowded, num_ids, parse_large
from gateway.core.errors import Forbidden, InvalidRequest, ModelMissing
from gateway.core.requests.request import parse_request

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
def test_a_large_body_is_the_same_request(name: str, options: dict[str, Any]) -> None:
    path, given = BODIES[name]
    if options.get("salt") and path == "/v1/embeddings":
        return
    found, expected = parse_large(path, given, **options), parse_request(path, given, **options)
    for attribute in READ:
        assert getattr(found, attribute) == getattr(expected, attribute), attribute
    if name != "steering":  # there `fields` may still have what is not sent
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


def test_a_chat_with_a_long_text_has_no_names() -> None:
    """Without its middle it would have those of another chat."""
    assert parse_large(CHAT, body(messages=[{"role": "user", "content": "a" * MB}])).messages is None


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
        (COMPLETIONS, body(prompt="hi", stream=1, x="a" * MB), "'stream' must be a boolean"),
    ],
)
def test_what_is_wrong_is_named(path: str, given: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        parse_large(path, given)


def test_the_model_is_the_one_that_the_worker_gets() -> None:
    with pytest.raises(ModelMissing):
        parse_large(COMPLETIONS, json.dumps({"prompt": "a" * MB}).encode())
    sent = parse_large(COMPLETIONS, json.dumps({"model": "", "prompt": "a" * MB}).encode(), model="q")
    assert (sent.model, msgspec.json.decode(sent.body)["model"]) == ("q", "q")
    with pytest.raises(InvalidRequest, match="longer than"):
        parse_large(COMPLETIONS, json.dumps({"model": "a" * MB, "prompt": ""}).encode())
    with pytest.raises(Forbidden):
        parse_large(COMPLETIONS, body(prompt="a" * MB, lora_path="x"), models={"m"})


@pytest.mark.parametrize("value", [{}, [], 1, {"a": 1}])
def test_a_body_of_too_many_values_is_crowded(value: object) -> None:
    values = [value] * (2 * MB)
    crowd = body(messages=[TURN], tools=values)
    assert is_crowded(crowd, len(crowd))
    request = parse_large(CHAT, crowd)
    assert (request.is_crowded, request.messages, request.body) == (True, request.messages, crowd)
    assert parse_large(CHAT, body(messages=values)).messages is None


def test_marks_within_texts_are_no_values() -> None:
    prose = body(prompt='{"a", \\ [' * (MB // 2))
    assert not is_crowded(prose, len(prose))
    commas = body(messages=[{"role": "user", "content": "a," * 3 * MB}])
    assert not parse_large(CHAT, commas).is_crowded


def test_many_names_are_refused() -> None:
    given = b'{"model":"m","prompt":"hi",' + b",".join(b'"%d":{}' % n for n in range(400_000)) + b"}"
    with pytest.raises(InvalidRequest, match="too many values outside of its prompt"):
        fields_of(given, crowded=True)


def test_token_ids_are_counted_without_decoding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_body, "PIECE_BYTES", 7)
    assert num_ids(body(prompt=[1, 22, 333] * 10)) == 30
    assert num_ids(body(prompt=["1"] * 10)) == 0
    assert num_ids(body(prompt="1,2")) == 0
    assert num_ids(b"{") == 0


def test_a_long_text_is_not_decoded() -> None:
    quoted = body(prompt='"' * LONG_BYTES)
    assert parse_large(COMPLETIONS, quoted).fields["prompt"] == '"' * LONG_BYTES
