import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest, ModelMissing
from gateway.core.route_table import RouteKind
from gateway.requests.parsing import BodyRules, parse_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_a_body_passes_byte_for_byte() -> None:
    body = b'{ "model":"org/m", "messages":[{"role":"user","content":"\\u00e9"}], "new_field": 1.50 }'
    request = parse_request(CHAT, body)
    assert request.body is body
    assert (request.kind, request.model, request.stream) == (RouteKind.CHAT, "org/m", False)


def test_fields_that_routing_reads() -> None:
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
        (CHAT, b'{"model":"m","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}", None),
        (CHAT, b'{"model":"m","messages":[],"x":"\xff"}', None),
    ],
)
def test_a_bad_body_is_rejected_with_the_field(path: str, body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(path, body)
    assert caught.value.status == 400
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", ['"a"', '["a","b"]', "[1,2]", "[[1],[2,3]]", '""'])
def test_all_prompt_forms_are_accepted(prompt: str) -> None:
    request = parse_request(COMPLETIONS, b'{"model":"m","prompt":%b}' % prompt.encode())
    assert request.fields["prompt"] == msgspec.json.decode(prompt)


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


def test_other_xargs_are_kept() -> None:
    body = b'{"model":"m","prompt":"x","vllm_xargs":{"kv_cache_report_mode":"full","mine":1e3}}'
    assert b'{"mine":1e3}' in parse_request(COMPLETIONS, body).body


def test_routes_without_a_known_prompt_need_a_model_only() -> None:
    body = b'{"model":"e","input":["a"],"user":"u","cache_salt":"s","stream":true}'
    request = parse_request("/v1/embeddings", body)
    assert (request.kind, request.model) == (RouteKind.PASS, "e")
    assert (request.session, request.cache_salt, request.stream) == ("u", "s", True)
    assert request.fields["input"] == ["a"]


@pytest.mark.parametrize("body", [b'{"model":"e","input":["\xff"]}', b'{"model":"e"', b'{"model":1}', b"[]"])
def test_routes_without_a_known_prompt_reject_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request("/v1/embeddings", body)


@pytest.mark.parametrize("path", ["/v1/embeddings", CHAT, COMPLETIONS])
def test_a_model_may_be_named_outside_the_body(path: str) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","model":null}'
    with pytest.raises(ModelMissing):
        parse_request(path, body)
    request = parse_request(path, body, rules=BodyRules(model="other"))
    assert request.model == "other" and b'"model":"other"' in request.body and b"null" not in request.body


def test_an_added_route_may_have_no_body() -> None:
    request = parse_request("/sleep", b"", rules=BodyRules(model="m"))
    assert (request.kind, request.model, request.body, request.may_repeat) == (
        RouteKind.PASS,
        "m",
        b"",
        False,
    )


# known messages ----------------------------------------------------------------------------------

FIRST = b'{"role":"user","content":"a"},{"role":"assistant","content":"b"}'


def chat(messages: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"m","messages":[%b]%b}' % (messages, more)


def names(body: bytes) -> list[bytes]:
    messages = parse_request(CHAT, body).messages
    assert messages
    return list(messages.names)


def test_known_messages_are_not_decoded_again() -> None:
    body = chat(FIRST + b',{"role":"user","content":"c"}')
    request = parse_request(CHAT, body, set(names(body)))
    assert request.messages and request.messages.num_known == 2  # the last message is never before a cut
    assert request.messages.new == [{"role": "user", "content": "c"}]
    assert request.num_new_bytes == len(b'{"role":"user","content":"c"}')
    assert request.fields["messages"][0] == {"role": "user", "content": "a"}
    assert parse_request(CHAT, body).num_new_bytes == len(body)


DIGITS = b"9" * 5000
"""Integer of more digits than a decoder, or an engine, reads."""


@pytest.mark.parametrize(
    ("last", "more", "param"),
    [
        (b'"hi"', b"", "messages[2]"),
        (b'{"content":"x"}', b"", "messages[2].role"),
        (b'{"role":"user","content":"\xff"}', b"", None),
        pytest.param(b'{"role":"user","content":%b}' % DIGITS, b"", None, id="digits"),
        (b'{"role":"user"}', b',"stream":"yes"', "stream"),
        (b'{"role":"user"}', b',"stop":["\xff"]', None),
        pytest.param(b'{"role":"user"}', b',"response_format":{"x":%b}' % DIGITS, None, id="nested digits"),
    ],
)
def test_new_messages_behind_known_ones_are_checked(last: bytes, more: bytes, param: str | None) -> None:
    known = set(names(chat(FIRST)))
    with pytest.raises(InvalidRequest) as caught:
        parse_request(CHAT, chat(FIRST + b"," + last, more), known)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "is_kept"),
    [
        ('"kv_transfer_params":{"a":1}', True),
        ('"bootstrap_room":1', True),
        ('"kv_cache_report_mode":1', False),
    ],
)
def test_a_client_that_splits_requests_itself_may_send_transfer_fields(field: str, is_kept: bool) -> None:
    """Transfer fields pass where that is allowed; fields that steer events never do."""
    for path, prompt_field in (
        ("/v1/completions", '"prompt":"x"'),
        ("/v1/chat/completions", '"messages":[{"role":"user"}]'),
    ):
        body = f'{{"model":"m",{prompt_field},{field}}}'.encode()
        allowed, removed = (
            parse_request(path, body, rules=BodyRules(keeps_transfer=True)),
            parse_request(path, body),
        )
        assert (allowed.may_split, field.encode() in allowed.body) == (not is_kept, is_kept)
        assert (removed.may_split, field.encode() in removed.body) == (True, False)


def test_steering_fields_beside_known_messages_are_removed() -> None:
    body = chat(FIRST, b',"bootstrap_host":"x","vllm_xargs":{"kv_cache_report_mode":"full","a":1}')
    request = parse_request(CHAT, body, set(names(body)))
    assert request.messages and request.messages.num_known == 1
    assert request.body == chat(FIRST, b',"vllm_xargs":{"a":1}')


@pytest.mark.parametrize(
    "other",
    [
        chat(FIRST, b',"tools":[]'),
        chat(FIRST, b',"chat_template_kwargs":{"a":1}'),
        chat(FIRST, b',"reasoning_effort":"low"'),
        chat(FIRST, b',"add_generation_prompt":false'),
        chat(FIRST).replace(b'"m"', b'"n"'),
        chat(FIRST.replace(b"a", b"A", 1)),
    ],
)
def test_another_model_tool_or_setting_makes_another_conversation(other: bytes) -> None:
    assert not set(names(other)) & set(names(chat(FIRST)))


def test_sampling_fields_do_not_change_the_conversation() -> None:
    assert names(chat(FIRST, b',"temperature":1,"user":"u","stop":["x"]')) == names(chat(FIRST))


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_messages_are_judged_as_by_the_full_check(messages: object) -> None:
    body = {"model": "m", "messages": messages, "other": messages}
    is_good = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    )
    try:
        parse_request(CHAT, msgspec.json.encode(body))
    except InvalidRequest:
        assert not is_good
    else:
        assert is_good


# salts ------------------------------------------------------------------------------------------------

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SALTED = [
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]%b}'),
    (COMPLETION, b'{"model":"m","prompt":"x"%b}'),
    ("/v1/responses", b'{"model":"m","input":"x"%b}'),
    ("/v1/messages", b'{"model":"m","messages":[]%b}'),
    ("/v1/embeddings", b'{"model":"m","input":"x"%b}'),
]


@pytest.mark.parametrize(("path", "body"), SALTED)
@pytest.mark.parametrize(
    "given",
    [
        b"",
        b' , "x":{"cache_salt":"inner"} ',
        b',"cache_salt":"theirs"',
        b',"cache_salt":null',
        rb',"cache\u005fsalt":"theirs"',
        rb',"\u0063ache_salt":"theirs","cache_salt":"again"',
        b',"y":"}\\"cache_salt\\":\\"text\\""',
    ],
)
def test_a_salt_replaces_the_salt_of_the_client(path: str, body: bytes, given: bytes) -> None:
    request = parse_request(path, body % given, rules=BodyRules(salt="OURS"))
    assert request.cache_salt == "OURS"
    sent = msgspec.json.decode(request.body)
    assert sent == msgspec.json.decode(body % given) | {"cache_salt": "OURS"}
    assert request.body.count(b'salt":') == 1 + given.count(b"inner")
    assert request.fields["cache_salt"] == "OURS"
    assert b"theirs" not in request.body


@pytest.mark.parametrize("space", [b"", b" ", b"\n\t\r "])
def test_a_body_that_ends_in_white_space_is_salted(space: bytes) -> None:
    request = parse_request(COMPLETION, b'{"model":"m","prompt":"}" }' + space, rules=BodyRules(salt="OURS"))
    assert msgspec.json.decode(request.body) == {"model": "m", "prompt": "}", "cache_salt": "OURS"}


def test_a_salt_of_a_wrong_type_is_rejected_although_it_is_replaced() -> None:
    with pytest.raises(InvalidRequest, match="'cache_salt' must be a string"):
        parse_request(COMPLETION, b'{"model":"m","prompt":"x","cache_salt":5}', rules=BodyRules(salt="OURS"))


def test_conversations_are_known_under_their_salt_only() -> None:
    body = SALTED[0][1] % b""
    names = [parse_request(CHAT, body, rules=BodyRules(salt=salt)).messages for salt in ("a", "a", "b", None)]
    first, same, second, unsalted = [messages.names for messages in names if messages]
    assert first == same and len({*map(tuple, (first, second, unsalted))}) == 3


def test_steering_fields_are_removed_and_the_salt_stays() -> None:
    body = b'{"model":"m","prompt":"x","kv_transfer_params":{},"cache_salt":"theirs"}'
    assert parse_request(COMPLETION, body, rules=BodyRules(salt="OURS")).body == (
        b'{"model":"m","prompt":"x","cache_salt":"OURS"}'
    )
