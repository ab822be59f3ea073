"""A stream with injected usage looks to the client as one without: vLLM's chunks, and other engines'."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.sse import MAX_HELD_BYTES
from gateway.http.usage_injection import InjectedUsageScanner, with_usage

DONE = b"data: [DONE]\n\n"
STAMP = {"system_fingerprint": "vllm-0.32.0-tp1"}
COUNTS = {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2}
USAGE = {"usage": COUNTS | {"prompt_tokens_details": {"cached_tokens": 4}}}


def chunk(*choices: Any, **more: Any) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + msgspec.json.encode(head | more) + b"\n\n"


def text(usage_: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": usage_}, "logprobs": None, "finish_reason": finish}


ROLE = chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
TRICK = 'he said "usage":null, "finish_reason":"stop" and "usage":{"prompt_tokens":1}'
BEGUN = ROLE + chunk(text("a")) + chunk(text(TRICK))
VLLM_PLAIN = BEGUN + chunk(text("b", "stop"), **STAMP) + DONE
VLLM_ASKED = BEGUN + chunk(text("b", "stop")) + chunk(**USAGE, **STAMP) + DONE
# Null in each other chunk, in OpenAI's documentation.
NULL_PLAIN = BEGUN + chunk(text("b", "length")) + DONE
NULL_ASKED = (
    b"".join(event[:-1] + b',"usage":null}\n\n' for event in BEGUN.split(b"\n\n")[:-1])
    + chunk(text("b", "length"), usage=None)
    + chunk(**USAGE)
    + DONE
)
FINGERPRINTS_PLAIN = chunk(text("b", "stop"), **STAMP) + DONE
FINGERPRINTS_ASKED = chunk(text("b", "stop"), **STAMP) + chunk(**USAGE, **STAMP) + DONE
# Reported beside choices, so not injected: the client would get it anyway.
FORCED = (
    chunk(text("a"), usage=COUNTS) + chunk(text("b", "stop"), usage=COUNTS) + chunk(**USAGE, **STAMP) + DONE
)


def spaced(stream: bytes) -> bytes:
    events = [event.partition(b"data: ")[2] for event in stream.split(b"\n\n")[:-1]]
    lines = [e if e == b"[DONE]" else json.dumps(json.loads(e)).encode() for e in events]
    return b"".join(b"data: " + line + b"\n\n" for line in lines)


CASES = {
    "vllm": (VLLM_ASKED, VLLM_PLAIN),
    "null": (NULL_ASKED, NULL_PLAIN),
    "spaced": (spaced(VLLM_ASKED), spaced(VLLM_PLAIN)),
    "spaced null": (spaced(NULL_ASKED), spaced(NULL_PLAIN)),
    "spaced, after a comment": (b": ping\n\n" + spaced(VLLM_ASKED), b": ping\n\n" + spaced(VLLM_PLAIN)),
    "crlf": (VLLM_ASKED.replace(b"\n", b"\r\n"), VLLM_PLAIN.replace(b"\n", b"\r\n")),
    "a fingerprint in each chunk": (FINGERPRINTS_ASKED, FINGERPRINTS_PLAIN),
    "unasked usage": (FORCED, FORCED),
    "usage that was not given": (VLLM_PLAIN, VLLM_PLAIN),
    "comments": (
        b": ping\n\n" + VLLM_ASKED[:-14] + b": ping\n\n" + DONE,
        b": ping\n\n" + VLLM_PLAIN[:-14] + b": ping\n\n" + DONE,
    ),
}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_the_stream_is_that_of_a_client_without_injection_in_any_split(
    name: str, data: st.DataObject
) -> None:
    asked, plain = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(asked)), max_size=10)))
    scanner = InjectedUsageScanner()
    out = [scanner.feed(asked[a:b]) for a, b in zip([0, *cuts], [*cuts, len(asked)], strict=True)]
    assert b"".join(out) + scanner.flush() == plain
    assert (scanner.usage() is not None) is (asked != plain or asked is FORCED)


def test_an_engine_that_always_writes_null_keeps_it() -> None:
    scanner = InjectedUsageScanner(keeps_null=True)
    null = chunk(text("a"), usage=None)
    assert scanner.feed(null + chunk(text("b", "stop"), usage=None) + chunk(**USAGE) + DONE) == (
        null + chunk(text("b", "stop"), usage=None) + DONE
    )
    usage = scanner.usage()
    assert usage is not None
    assert usage.cached_tokens == 4


def test_held_bytes_can_be_flushed_at_the_end() -> None:
    scanner = InjectedUsageScanner()
    last = chunk(text("b", "stop"))
    assert scanner.feed(last) == b""
    assert scanner.held() == last
    assert scanner.flush() == b""


def test_an_event_without_end_passes_in_parts() -> None:
    scanner = InjectedUsageScanner()
    long = b'data: {"usage":null,"finish_reason":"' + b"x" * MAX_HELD_BYTES
    assert scanner.feed(long) == long
    assert scanner.feed(b'"}\n\n' + DONE) == b'"}\n\n' + DONE


def test_invalid_json_passes_unchanged() -> None:
    for event in (b'data: {"usage":{\n\n', b'data: "usage":{\xff}\n\n', b'event: "usage":{\n\n'):
        assert InjectedUsageScanner().feed(event) == event


@pytest.mark.parametrize(
    "body", [b'{"model":"m"}', b' \n{ "model" : "m" , "x":[{}]}', b'{"model":"{","stream":true}']
)
def test_only_the_request_for_usage_is_added_to_a_body(body: bytes) -> None:
    asked = json.loads(with_usage(body))
    assert asked.pop("stream_options") == {"include_usage": True}
    assert asked == json.loads(body)
