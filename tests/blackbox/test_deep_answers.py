"""Workers that answer with JSON nested too deeply for an interpreter.

The answer passes unchanged or ends with an error event, and no other client notices.
"""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import (
    CHAT,
    COMPLETIONS,
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    event,
    post,
    wire,
)
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.scripted_worker import Call, says
from tests.support.patience import patience, until

DEPTH = 200_000
DEEP = b"[" * DEPTH + b"]" * DEPTH
JSON = (b"Content-Type", b"application/json")

EVENTS = {
    "in its choices": b'data: {"choices":' + DEEP + b"}\n\n",
    "beside its choices": b'data: {"choices":[{"text":"a"}],"x":' + DEEP + b"}\n\n",
    "beside its usage": b'data: {"choices":[],"x":%b,"usage":{"prompt_tokens":1}}\n\n' % DEEP,
    "in its usage": b'data: {"choices":[],"usage":{"x":%b}}\n\n' % DEEP,
    "as the whole of it": b"data: " + DEEP + b"\n\n",
}


@pytest.mark.parametrize("deep", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("asks_usage", [False, True])
async def test_a_deep_event_passes_or_ends_in_an_error_event(
    bench: Bench, deep: bytes, asks_usage: bool
) -> None:
    stream = event("a") + deep + event("b") + DONE
    await bench.worker(script=says(SSE_HEAD + chunked(stream)))
    more = {"stream_options": {"include_usage": True}} if asks_usage else {}
    answer = await bench.ask(post(completion("hi", stream=True, **more)))
    assert answer.status == 200
    assert answer.body == stream or answer.body.startswith(event("a"))
    assert answer.body.endswith(DONE), "whole, or ended by an error event"
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0


@pytest.mark.parametrize("deep", EVENTS.values(), ids=EVENTS)
async def test_a_deep_first_event_passes(bench: Bench, deep: bytes) -> None:
    """Event that may or may not hold a token."""
    stream = deep + event("a") + DONE
    await bench.worker(script=says(SSE_HEAD + chunked(stream)))
    answer = await bench.ask(post(completion("hi", stream=True)))
    assert answer.body == stream


@pytest.mark.parametrize("path", ["/v1/completions", CHAT, "/v1/responses", "/v1/embeddings", "/v1/messages"])
async def test_a_deep_unstreamed_answer_passes(bench: Bench, path: str) -> None:
    body = b'{"x":' + DEEP + b',"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    await bench.worker(script=says(wire(200, body, JSON)))
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "prompt": "hi"}
    answer = await bench.ask(post(json.dumps({**asked, "max_tokens": 1}).encode(), target=path))
    assert (answer.status, answer.body) == (200, body)


async def test_deep_answers_pass_redaction() -> None:
    """Each `usage` may contain another one: all of them are searched at once."""
    async with running("--mask-cached-tokens") as bench:
        nested = b'{"usage":' * DEPTH
        worker = await bench.worker(script=says(wire(200, nested, JSON)))
        async with asyncio.timeout(patience(10)):
            answer = await bench.ask(post(completion()))
        assert (answer.status, answer.body) == (200, nested)
        stream = b"data: " + nested + b"\n\n" + DONE
        worker.script = says(SSE_HEAD + chunked(stream))
        async with asyncio.timeout(patience(10)):
            assert (await bench.ask(post(completion(stream=True)))).body == stream


async def test_deep_answers_to_probes_do_not_take_a_worker_down(bench: Bench) -> None:
    """Lists of models and tokens nested too deeply: the worker is treated like a silent one."""
    worker = await bench.worker({"id": "m", "x": None})
    worker.models = [{"id": "m"}]

    async def script(call: Call) -> None:
        await call.send(wire(200, b'{"ok":true}', JSON))

    worker.script = script
    pages = {b"/v1/models": b'{"data":[{"id":"m","x":' + DEEP + b"}]}", b"/tokenize": DEEP}
    own = worker._own
    worker._own = lambda call: wire(200, pages[call.target]) if call.target in pages else own(call)  # type: ignore[method-assign]
    num = len(worker.probes)
    await until(
        lambda: any(call.target == b"/v1/models" for call in worker.probes[num:]), "it was asked again"
    )
    assert (await bench.ask(post(completion()))).status == 200
    assert await bench.gateway.is_up(worker)


@pytest.mark.parametrize("path", ["/admin/workers", "/admin/adapters", "/admin/explain"])
async def test_a_deep_body_is_rejected_by_the_admin_api(bench: Bench, path: str) -> None:
    for body in (DEEP, b'{"url":' + DEEP + b"}", b'{"prompt":' + DEEP + b"}"):
        answer = await bench.gateway.admin("POST", path, body)
        assert 400 <= answer.status < 500, answer


async def test_bodies_near_the_nesting_limit_are_rejected_or_passed_on(tmp_path: Path) -> None:
    """Bodies are deep enough to be rejected, or read the same wherever they are read again: under an
    alias, too.
    """
    file = tmp_path / "kvgate.toml"
    file.write_text('[models.m]\naliases = ["other"]\n')
    async with running("--config", str(file)) as bench:
        await bench.worker()
        for depth in [100, *range(850, 1001, 5), 2000]:
            value = b"[" * depth + b"]" * depth
            for model in (b"m", b"other"):
                text = b'{"model":"%b","prompt":"hi","x":%b}' % (model, value)
                chat = b'{"model":"%b","messages":[{"role":"user","content":"a"}],"tools":[{"x":%b}]}'
                for path, body in ((COMPLETIONS, text), (CHAT, chat % (model, value))):
                    answer = await bench.ask(post(body, target=path))
                    assert answer.status in (200, 400), (depth, model, answer)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/embeddings", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("field", ["lora_path", "vllm_xargs", "priority", "n", "x"])
async def test_numbers_of_thousands_of_digits_are_rejected_or_passed_on(
    tmp_path: Path, path: str, field: str
) -> None:
    """Keys with models are covered: the number is rejected or passed on unchanged, and causes no
    internal error.
    """
    key, line = new_key("--tenant", "t", "--models", "m")
    file = tmp_path / "keys"
    file.write_text(line)
    async with running("--key-file", str(file)) as bench:
        worker = await bench.worker()
        digits = b"9" * 5000
        value = b'{"lora_path":%b}' % digits if field == "vllm_xargs" else digits
        body = b'{"model":"m","prompt":"a","input":"a","messages":[{"role":"user","content":"a"}],"%b":%b}'
        answer = await bench.ask(post(body % (field.encode(), value), bearer(key), target=path))
        assert answer.status == 400 or worker.calls, answer
        assert answer.status in (200, 400)
