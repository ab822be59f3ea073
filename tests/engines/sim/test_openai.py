"""Chunks and answers field by field, as recorded from vLLM 0.32."""

import json
from array import array
from typing import Any

import pytest

from engines.sim.job import HttpJob, TokenCounts
from engines.sim.openai import DONE, Chat, Completions, sse
from engines.sim.params import read
from engines.sim.words import GeneratedText

PROMPT = array("I", [7, 8, 9])
ANSWER = GeneratedText(array("I", [11, 12]), [" one", " two"], "length")
USAGE = TokenCounts(3, 2, 0)


def job(**body: Any) -> HttpJob:
    return HttpJob(read(body, ("m",), (), 16), [PROMPT], [ANSWER], "abc")


def data(chunk: bytes) -> Any:
    return json.loads(chunk.removeprefix(b"data: "))


def reported(submitted: HttpJob, count: int) -> Any:
    (choice,) = submitted.choices
    choice.num_sent = count
    return choice


def test_a_chat_chunk_has_the_recorded_fields() -> None:
    submitted = job()
    assert data(Chat().chunk(submitted, reported(submitted, 1), USAGE)) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion.chunk",
        "created": submitted.created,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"content": " one"},
                "logprobs": None,
                "finish_reason": None,
                "token_ids": None,
            }
        ],
    }
    last = data(Chat().chunk(submitted, reported(submitted, 2), USAGE))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["stop_reason"] is None
    assert "system_fingerprint" in last


def test_a_completion_chunk_has_the_recorded_fields() -> None:
    submitted = job(return_token_ids=True)
    first = data(Completions().chunk(submitted, reported(submitted, 1), USAGE))["choices"][0]
    assert (first["text"], first["token_ids"], first["prompt_token_ids"]) == (" one", [11], [7, 8, 9])
    second = data(Completions().chunk(submitted, reported(submitted, 2), USAGE))["choices"][0]
    assert (second["token_ids"], second["prompt_token_ids"]) == ([12], None)


@pytest.mark.parametrize(
    ("dialect", "details"),
    [
        (Completions(), {"cached_tokens": 0}),
        (Chat(), {"cached_tokens": 0, "created_cache_tokens": 0}),
    ],
)
def test_the_last_chunk_has_the_usage(dialect: Completions | Chat, details: dict[str, int]) -> None:
    assert dialect.closing(job(), USAGE) == DONE
    closing = dialect.closing(job(stream_options={"include_usage": True}), USAGE)
    assert closing.endswith(DONE)
    last = data(closing.removesuffix(DONE))
    counts = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    assert (last["choices"], last["usage"]) == ([], counts | {"prompt_tokens_details": details})


def test_usage_in_each_chunk_on_request() -> None:
    submitted = job(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = {
        "prompt_tokens": 3,
        "total_tokens": 4,
        "completion_tokens": 1,
        "completion_tokens_details": None,
    }
    assert data(Chat().chunk(submitted, reported(submitted, 1), USAGE))["usage"] == counts
    assert data(Completions().chunk(submitted, reported(submitted, 1), USAGE))["usage"] == counts
    assert data(Chat().opening(submitted, USAGE))["usage"]["completion_tokens"] == 0


def test_an_echo_comes_with_the_first_chunk() -> None:
    submitted = job(echo=True)
    assert (
        data(Completions(["prompt"]).chunk(submitted, reported(submitted, 1), USAGE))["choices"][0]["text"]
        == "prompt one"
    )
    assert (
        data(Completions(["prompt"]).chunk(submitted, reported(submitted, 2), USAGE))["choices"][0]["text"]
        == " two"
    )


def test_an_event_has_its_name() -> None:
    assert sse({"a": 1}, "name") == b'event: name\ndata: {"a":1}\n\n'
