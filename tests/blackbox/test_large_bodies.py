"""Large bodies: rejected where no worker accepts them, bounded in memory, and no delay for others."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.blackbox.bench import Bench, lasting, visiting
from tests.support.blackbox.http1_bytes import CHAT, COMPLETIONS, post
from tests.support.blackbox.memory_peaks import LARGE_BODIES, MB, begin_peak, memory_of, peak_is_small
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.patience import until

SIZE = 24 * MB
MAX_MODEL_LEN = 8192
MODEL = {"id": "m", "root": "m", "owned_by": "vllm", "max_model_len": MAX_MODEL_LEN}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tokenizing() -> AsyncIterator[Gateway]:
    async with lasting(*LARGE_BODIES) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def bench(tokenizing: Gateway) -> AsyncIterator[Bench]:
    async with visiting(tokenizing) as bench:
        yield bench


def chat(content: str) -> bytes:
    return ('{"model":"m","messages":[{"role":"user","content":"' + content + '"}]}').encode()


FORMS = {
    "word": (CHAT, chat("a" * SIZE)),
    "prose": (CHAT, chat("the quick brown fox " * (SIZE // 20))),
    "escapes": (CHAT, chat("\\u0061" * (SIZE // 6))),
    "wide": (CHAT, chat("😀" + "a" * SIZE)),
    "emoji": (COMPLETIONS, b'{"model":"m","prompt":"' + "😀".encode() * (SIZE // 4) + b'"}'),
    "escaped emoji": (COMPLETIONS, b'{"model":"m","prompt":"' + b"\\ud83d\\ude00" * (SIZE // 12) + b'"}'),
    "completion": (COMPLETIONS, b'{"model":"m","prompt":"' + b"a" * SIZE + b'"}'),
    "list": (COMPLETIONS, b'{"model":"m","prompt":["hi","' + b"a" * SIZE + b'"]}'),
    "ids": (COMPLETIONS, b'{"model":"m","prompt":[' + b"1," * (SIZE // 2) + b"1]}"),
    "messages": (
        "/v1/messages",
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"' + b"a" * SIZE + b'"}]}',
    ),
    "responses": ("/v1/responses", b'{"model":"m","input":"' + b"a" * SIZE + b'"}'),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_prompt_that_no_worker_accepts_is_rejected_as_by_the_engine(bench: Bench, form: str) -> None:
    worker = await bench.worker(MODEL)
    path, body = FORMS[form]
    start = begin_peak(bench.gateway)
    answer = await bench.ask(post(body, target=path))
    assert answer.status == 400
    error = answer.json["error"]
    assert f"maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]
    if path in (CHAT, COMPLETIONS):
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input_tokens")
    assert worker.calls == []
    await peak_is_small(bench.gateway, start, len(body))


TURN = '{"role":"user","content":"Hi"}'
CROWDS = {
    "messages": (CHAT, '{"model":"m","messages":[%s]}', TURN, "messages"),
    "parts": (
        CHAT,
        '{"model":"m","messages":[{"role":"user","content":[%s]}]}',
        '{"type":"text","text":""}',
        "messages[0].content",
    ),
    "tools": (
        CHAT,
        '{"model":"m","messages":[' + TURN + '],"tools":[%s]}',
        '{"function":{"name":"f"}}',
        "tools",
    ),
    "documents": (CHAT, '{"model":"m","messages":[' + TURN + '],"documents":[%s]}', "{}", "documents"),
    "prompts": (COMPLETIONS, '{"model":"m","prompt":[%s]}', '"a"', "prompt"),
    "id lists": (COMPLETIONS, '{"model":"m","prompt":[%s]}', "[1]", "prompt"),
    "turns": ("/v1/messages", '{"model":"m","max_tokens":1,"messages":[%s]}', TURN, "messages"),
    "items": ("/v1/responses", '{"model":"m","input":[%s]}', TURN, "input"),
    "inputs": ("/v1/embeddings", '{"model":"m","input":[%s]}', '"a"', "input"),
}


def crowd_of(form: str, unit: str, size: int) -> bytes:
    return (form % ",".join([unit] * (size // (len(unit) + 1)))).encode()


@pytest.mark.parametrize("crowd", CROWDS)
async def test_a_list_of_a_million_items_is_rejected_by_its_name(bench: Bench, crowd: str) -> None:
    """No worker has to read it."""
    worker = await bench.worker(MODEL)
    path, form, unit, param = CROWDS[crowd]
    body = crowd_of(form, unit, SIZE)
    start = begin_peak(bench.gateway)
    answer = await bench.ask(post(body, target=path))
    assert answer.status == 400
    assert f"'{param}' holds more than 65,536 items" in answer.body.decode()
    assert worker.calls == []
    await peak_is_small(bench.gateway, start, len(body))


@pytest.mark.parametrize("crowd", ["prompts", "id lists", "inputs"])
async def test_a_list_of_too_many_items_is_rejected_in_a_smaller_body_too(bench: Bench, crowd: str) -> None:
    worker = await bench.worker(MODEL)
    path, form, unit, _ = CROWDS[crowd]
    answer = await bench.ask(post(crowd_of(form, unit, MB - 100), target=path))
    assert answer.status == 400 and "holds more than 65,536 items" in answer.body.decode()
    assert worker.calls == []


@pytest.mark.parametrize("crowd", ["tools", "prompts", "inputs"])
async def test_a_long_list_is_forwarded_unchanged(bench: Bench, crowd: str) -> None:
    worker = await bench.worker("m")
    path, form, unit, _ = CROWDS[crowd]
    unit = unit.replace('"a"', '"' + "a" * 30 + '"')
    body = crowd_of(form, unit, 60_000 * (len(unit) + 1))
    assert (await bench.ask(post(body, target=path))).status == 200
    assert worker.calls[0].wish == body


TOOLS = {
    CHAT: {"type": "function", "function": {"name": "f"}},
    "/v1/messages": {"name": "f", "input_schema": {"type": "object"}},
    "/v1/responses": {"type": "function", "name": "f", "parameters": {}},
}


@pytest.mark.parametrize("path", TOOLS)
async def test_a_prompt_of_very_many_tools_is_routed_by_load_and_answered(bench: Bench, path: str) -> None:
    """No tokens are known, since the prompt is not rendered."""
    worker = await bench.worker("m")
    text = [{"role": "user", "content": "Hi"}]
    for num, failures in ((4096, 0), (4097, 1), (60_000, 1)):
        before = await bench.gateway.total("kvgate_prompt_tokenization_failures_total")
        fields = {
            "model": "m",
            "messages": text,
            "input": text,
            "max_tokens": 1,
            "tools": [TOOLS[path]] * num,
        }
        body = json.dumps(fields).encode()
        assert (await bench.ask(post(body, target=path))).status == 200
        assert worker.calls[-1].wish == body
        failed = await bench.gateway.total("kvgate_prompt_tokenization_failures_total") - before
        decision = await decided(bench)
        assert failed == failures, (num, decision)
        assert bool(decision["prompt_tokens"]) == (not failures), num


async def decided(bench: Bench) -> dict[str, Any]:
    """Latest decision."""
    id = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"][0]
    found: dict[str, Any] = (await bench.gateway.admin("GET", f"/admin/decisions/{id}")).json
    return found


async def test_a_client_that_disconnects_while_its_body_is_read_leaves_no_memory(bench: Bench) -> None:
    worker = await bench.worker(MODEL)
    start = begin_peak(bench.gateway)
    clients = [await bench.client() for _ in range(3)]
    for client in clients:
        await client.send(post(chat('\\"' * (SIZE // 2))))
        await client.close()
    assert (await bench.ask(post(chat("Hi"), target=CHAT))).status == 200
    await until(lambda: memory_of(bench.gateway, "VmRSS") <= start + SIZE, "the memory is given back")
    assert len(worker.calls) == 1


async def test_an_image_is_not_counted_as_text(bench: Bench) -> None:
    worker = await bench.worker(MODEL)
    url = "data:image/png;base64," + "iVBORw0KGgo=" * (SIZE // 12)
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    start = begin_peak(bench.gateway)
    assert (await bench.ask(post(body, target=CHAT))).status == 200
    assert worker.calls[0].wish == body
    await peak_is_small(bench.gateway, start, len(body))


async def test_a_prompt_that_a_worker_may_accept_is_forwarded(bench: Bench) -> None:
    worker = await bench.worker("m")  # the worker reports no limit of its prompts
    body = chat("a" * SIZE)
    start = begin_peak(bench.gateway)
    assert (await bench.ask(post(body, target=CHAT))).status == 200
    assert worker.calls[0].wish == body
    await peak_is_small(bench.gateway, start, len(body))


async def test_several_large_bodies_at_once_are_bounded_together(bench: Bench) -> None:
    await bench.worker(MODEL)
    body = chat("a" * SIZE)
    start = begin_peak(bench.gateway)
    answers = await asyncio.gather(*(bench.ask(post(body, target=CHAT)) for _ in range(3)))
    assert [answer.status for answer in answers] == [400] * 3
    await peak_is_small(bench.gateway, start, 3 * len(body))


async def test_long_prompts_do_not_wait_behind_a_giant_one(bench: Bench) -> None:
    order: list[str] = []

    async def script(call: Call) -> None:
        order.append("giant" if len(call.body) > SIZE else "long")
        await answer_ok(call)

    await bench.worker("m", script=script)
    giant, other = await bench.client(), await bench.client()
    text = "the quick brown fox jumps over the lazy dog "
    await giant.send(post(b'{"model":"m","prompt":"' + text.encode() * (SIZE // len(text) + 1) + b'"}'))
    long = b'{"model":"m","prompt":"' + text.encode() * 4000 + b'"}'
    assert (await other.ask(post(long))).status == 200
    assert order == ["long"]
    assert (await giant.answer()).status == 200


async def test_steering_fields_are_found_in_a_large_body(bench: Bench) -> None:
    worker = await bench.worker(MODEL)
    filler = '"metadata":"' + "a" * 2 * MB + '",'
    for steering in (
        '"kv_transfer_params":{"do_remote_prefill":true}',
        '"vllm_xargs":{"kv_transfer_params":{}}',
    ):
        body = ('{"model":"m","prompt":"hi",' + filler + steering + "}").encode()
        assert (await bench.ask(post(body))).status == 200
        assert b"kv_transfer_params" not in worker.calls[-1].body
        assert b"a" * 2 * MB in worker.calls[-1].body
