import msgspec
import pytest

from gateway.requests.parsing import parse_request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "more", "may_repeat"),
    [
        ("/v1/responses", b"", True),
        ("/v1/responses", b',"store":false,"background":false,"previous_response_id":null', True),
        ("/v1/responses", b',"store":true', False),
        ("/v1/responses", b',"background":true', False),
        ("/v1/responses", b',"previous_response_id":"resp_1"', False),
        ("/v1/responses", b',"conversation":{"id":"c"}', False),
        ("/v1/embeddings", b',"store":true', True),
        ("/v1/load_lora_adapter", b"", False),
    ],
)
def test_a_request_that_stores_state_is_not_repeated(path: str, more: bytes, may_repeat: bool) -> None:
    assert parse_request(path, b'{"model":"m","input":"x"%b}' % more).may_repeat is may_repeat


@pytest.mark.parametrize(
    ("more", "may_ask"),
    [
        ({"stream": True}, True),
        ({"stream": True, "n": 1}, True),
        ({"stream": True, "n": None}, True),
        ({"stream": True, "prompt": ["one"]}, True),
        ({"stream": True, "prompt": [1, 2]}, True),
        ({}, False),
        ({"stream": True, "n": 2}, False),
        ({"stream": True, "stream_options": None}, False),
        ({"stream": True, "stream\\u005foptions": {}}, False),
        ({"stream": True, "prompt": ["one", "two"]}, False),
        ({"stream": True, "prompt": [[1], [2]]}, False),
    ],
)
def test_usage_can_be_injected_into_a_stream_of_one_answer(more: dict[str, object], may_ask: bool) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "x", **more}).replace(b"\\\\", b"\\")
    assert parse_request(COMPLETIONS, body).may_ask_usage is may_ask


@pytest.mark.parametrize("more", [b"", b',"prompt":[]', b',"prompt":null'])
@pytest.mark.parametrize(("path", "may_ask"), [(CHAT, True), ("/v1/responses", False)])
def test_usage_can_be_injected_into_chats_and_not_into_responses(
    path: str, may_ask: bool, more: bytes
) -> None:
    """A chat has no prompt, but may have a field of that name."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true%b}' % more
    assert parse_request(path, body).may_ask_usage is may_ask


@pytest.mark.parametrize(
    ("more", "reads"),
    [
        ({}, True),
        ({"prompt_logprobs": 1}, False),
        ({"prompt_logprobs": None}, True),
        ({"echo": True}, True),
        ({"logprobs": 5}, True),
        ({"echo": True, "logprobs": 5}, False),
    ],
)
def test_log_probabilities_of_the_prompt_read_no_cache(more: dict[str, object], reads: bool) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "x", **more})
    assert parse_request(COMPLETIONS, body).reads_cache is reads


@pytest.mark.parametrize(
    ("path", "written", "priority"),
    [
        ("/v1/completions", "5", 5),
        ("/v1/completions", "-5", -5),
        ("/v1/completions", "true", None),
        ("/v1/completions", '"5"', None),
        ("/v1/completions", "null", None),
        ("/v1/embeddings", "7", 7),
        ("/v1/chat/completions", "7", 7),
    ],
)
def test_a_priority_is_read_and_goes_on_unchanged(path: str, written: str, priority: int | None) -> None:
    prompt = '"messages":[{"role":"user","content":"x"}]' if "chat" in path else '"prompt":"x"'
    body = f'{{"model":"m",{prompt},"priority":{written}}}'.encode()
    request = parse_request(path, body)
    assert request.priority == priority and request.body == body
    assert (request.tenant, request.slo_ttft_s, request.queued_s) == (None, None, 0.0)


def test_the_new_parts_of_a_chat_are_its_messages_with_their_parts_and_calls() -> None:
    parts = [{"type": "text", "text": "a"}] * 3
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "{{"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    assert parse_request("/v1/chat/completions", body).num_new_parts == 3 + 2 + 3


def test_a_known_message_is_no_new_part_unless_the_whole_is_rendered() -> None:
    messages = [{"role": "user", "content": "a"}] * 5
    body = msgspec.json.encode({"model": "m", "messages": messages})
    known = parse_request("/v1/chat/completions", body).messages
    assert known is not None
    request = parse_request("/v1/chat/completions", body, {known.names[2]})
    assert request.num_new_parts == 2
    request.is_whole = True
    assert request.num_new_parts >= 5


def test_the_new_parts_of_another_body_are_its_objects() -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}] * 30}
    assert 30 <= parse_request("/v1/messages", msgspec.json.encode(body)).num_new_parts <= 31
