"""Our errors as the anthropic SDK raises them: its class and type, our message."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest import sdks
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import SSE_HEAD, chunked, request
from tests.support.blackbox.keys import new_key
from tests.support.blackbox.scripted_worker import Call, hang, says

HI: Any = [{"role": "user", "content": "hi"}]


def claude(bench: Bench, key: str = "x") -> "sdks.anthropic.AsyncAnthropic":
    url = f"http://127.0.0.1:{bench.gateway.port}"
    return sdks.anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


async def refused(bench: Bench, key: str = "x", **fields: Any) -> "sdks.anthropic.APIStatusError":
    async with claude(bench, key) as client:
        with pytest.raises(sdks.anthropic.APIStatusError) as caught:
            await client.messages.create(**{"model": "m", "max_tokens": 5, "messages": HI, **fields})
    error = caught.value
    body: Any = error.body
    assert body["type"] == "error" and body["request_id"] == error.request_id, (
        "a client can report it to an operator"
    )
    assert error.request_id and error.response.headers["x-request-id"] == error.request_id
    assert error.api_message == body["error"]["message"]
    return error


def seen(error: "sdks.anthropic.APIStatusError") -> tuple[type, str | None, str | None]:
    return type(error), error.type, error.error_code


@asynccontextmanager
async def keyed(tmp_path: Path) -> AsyncIterator[tuple[Bench, str]]:
    file = tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "a", "--models", "other")
    file.write_text(line)
    async with running("--key-file", str(file)) as bench:
        yield bench, key


async def test_authentication_and_permission_errors_are_raised(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (bench, key):
        await bench.worker()
        error = await refused(bench)
        assert seen(error) == (sdks.anthropic.AuthenticationError, "authentication_error", "invalid_api_key")
        error = await refused(bench, key)
        assert seen(error)[:2] == (sdks.anthropic.PermissionDeniedError, "permission_error")


async def test_not_found_and_invalid_request_errors_are_raised(bench: Bench) -> None:
    await bench.worker()
    error = await refused(bench, model="other")
    assert seen(error) == (sdks.anthropic.NotFoundError, "not_found_error", "model_not_found")
    assert error.api_message and "'other'" in error.api_message
    error = await refused(bench, model="")
    assert seen(error) == (sdks.anthropic.BadRequestError, "invalid_request_error", "model_missing")
    async with claude(bench) as client:
        with pytest.raises(sdks.anthropic.NotFoundError) as caught:
            await client.messages.batches.list()
        assert caught.value.type == "not_found_error"
        with pytest.raises(sdks.anthropic.NotFoundError) as caught:
            await client.messages.count_tokens(model="other", messages=HI)
        assert caught.value.type == "not_found_error"


async def test_an_overloaded_error_is_raised_without_a_worker_and_an_api_error_for_a_dead_one(
    bench: Bench,
) -> None:
    error = await refused(bench)
    assert seen(error) == (sdks.anthropic.ServiceUnavailableError, "overloaded_error", "no_worker")
    assert error.response.headers["retry-after"]

    async def dies(call: Call) -> None:
        call.reset()

    await bench.worker(script=dies)
    error = await refused(bench)
    assert seen(error) == (sdks.anthropic.InternalServerError, "api_error", "worker_failed")


async def test_timeout_and_request_too_large_errors_are_raised() -> None:
    flags = ("--first-byte-timeout-s", "0.2", "--max-body-bytes", "2000", "--base-path", "/llm")
    async with running(*flags) as bench:
        await bench.worker(script=hang)
        url = f"http://127.0.0.1:{bench.gateway.port}/llm"
        async with sdks.anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            with pytest.raises(sdks.anthropic.GatewayTimeoutError) as late:
                await client.messages.create(model="m", max_tokens=5, messages=HI)
            assert late.value.type == "timeout_error"
            with pytest.raises(sdks.anthropic.ContentTooLargeError) as large:
                await client.messages.create(model="m", max_tokens=5, messages=HI, system="x" * 5000)
            body: Any = large.value.body
            assert body["error"]["type"] == "request_too_large" and body["request_id"]


async def test_a_rate_limit_error_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text('[tenants."*"]\nrequests_per_s = 0.01\nrequests_at_once = 1\n')
    async with running("--config", str(file)) as bench:
        await bench.worker(
            script=says(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        )
        async with claude(bench) as client:
            await client.messages.create(model="m", max_tokens=5, messages=HI)
        error = await refused(bench)
        assert seen(error) == (sdks.anthropic.RateLimitError, "rate_limit_error", "rate_limit_exceeded")
        assert int(error.response.headers["retry-after"]) > 0


STARTED = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 0},
    },
}


async def test_a_cut_stream_raises_in_the_client(bench: Bench) -> None:
    data = b"event: message_start\ndata: " + json.dumps(STARTED).encode() + b"\n\n"
    cut = says(SSE_HEAD + chunked(data, b"event: content_bl", end=False), then_close=True)
    await bench.worker(script=cut)
    async with claude(bench) as client:
        stream = await client.messages.create(model="m", max_tokens=5, messages=HI, stream=True)
        reported = []
        with pytest.raises(sdks.anthropic.APIStatusError) as caught:
            async for each in stream:
                reported.append(each.type)
        assert (reported, caught.value.type) == (["message_start"], "api_error")
        assert caught.value.api_message and caught.value.api_message.startswith("the answer is incomplete")
        body: Any = caught.value.body
        assert body["request_id"] == stream.response.headers["x-request-id"]
        with pytest.raises(sdks.anthropic.APIStatusError):
            async with client.messages.stream(model="m", max_tokens=5, messages=HI) as helper:
                await helper.get_final_message()


async def test_other_routes_keep_openais_format(bench: Bench) -> None:
    await bench.worker()
    url = f"http://127.0.0.1:{bench.gateway.port}/v1"
    async with sdks.openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        with pytest.raises(sdks.openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=HI)
        assert caught.value.code == "model_not_found"
    answer = await bench.ask(request("POST", "/v1/messages", b"{", (b"Content-Type", b"application/json")))
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    answer = await bench.ask(request("GET", "/v1/messages"))
    assert (answer.status, answer.value(b"allow"), answer.json["type"]) == (405, b"POST", "error")
