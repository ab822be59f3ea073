"""`--usage-injection`: usage is requested on streams, and their clients see nothing of it."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import (
    ASKS_USAGE,
    CHAT,
    COMPLETIONS,
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    post,
)
from tests.support.blackbox.scripted_worker import Call
from tests.support.blackbox.strict_client import Client
from tests.support.patience import until

STAMP = {"system_fingerprint": "vllm-0.32.0-tp1"}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def chunk(choices: list[Any], **more: Any) -> bytes:
    fields = {"id": "c", "created": 1, "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def piece(generated: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": generated, "delta": {"content": generated}, "finish_reason": finish}


BEGUN = chunk([piece("a")]) + chunk([piece('"usage":null {"usage":{}}')])
PLAIN = BEGUN + chunk([piece("b", "stop")], **STAMP) + DONE
ASKED = BEGUN + chunk([piece("b", "stop")]) + chunk([], usage=USAGE, **STAMP) + DONE


class Vllm:
    """Streams as vLLM does, in pieces unrelated to events."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.num_asked = 0

    async def __call__(self, call: Call) -> None:
        is_asked = json.loads(call.body).get("stream_options") == {"include_usage": True}
        self.num_asked += is_asked
        stream = ASKED if is_asked else PLAIN
        cuts = sorted(self.rng.sample(range(1, len(stream)), self.rng.choice((0, 1, 3, 40))))
        await call.send(SSE_HEAD)
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            await call.send(chunked(stream[start:end], end=False))
            await asyncio.sleep(0)
        await call.send(b"0\r\n\r\n")


def streamed(path: str, **more: Any) -> bytes:
    fields = {"model": "m", "stream": True, **more}
    fields |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": [1, 2, 3]}
    return post(json.dumps(fields).encode(), target=path)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_client_of_an_injected_stream_sees_the_usual_stream(bench: Bench, path: str) -> None:
    vllm = Vllm()
    await bench.worker(script=vllm)
    before = await bench.gateway.total("kvgate_worker_reported_answers_total")
    for _ in range(20):
        assert (await bench.ask(streamed(path))).body == PLAIN
    assert vllm.num_asked == 20
    assert await bench.gateway.total("kvgate_worker_reported_answers_total") == before + 20


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ({"stream_options": {"include_usage": True}}, ASKED),
        ({"stream_options": {"include_usage": False}}, PLAIN),
        ({"stream_options": None}, PLAIN),
        ({"n": 2}, PLAIN),  # it is unknown which choice finishes last
    ],
)
async def test_a_client_with_its_own_stream_options_is_left_alone(
    bench: Bench, more: Any, body: bytes
) -> None:
    worker = await bench.worker(script=Vllm())
    asked = streamed(COMPLETIONS, **more)
    assert (await bench.ask(asked)).body == body
    assert asked.endswith(worker.calls[0].body)


async def test_a_known_worker_is_sampled(bench: Bench) -> None:
    vllm = Vllm()
    await bench.worker(script=vllm)
    client = await bench.client()
    for _ in range(96):
        assert (await client.ask(streamed(COMPLETIONS))).body == PLAIN
    assert vllm.num_asked == 32 + 4


@pytest.mark.parametrize(("mode", "num_asked"), [("all", 40), ("off", 0)])
async def test_injection_of_all_streams_or_none(mode: str, num_asked: int) -> None:
    async with running("--usage-injection", mode) as bench:
        vllm = Vllm()
        worker = await bench.worker(script=vllm)
        client = await bench.client()
        for _ in range(40):
            assert (await client.ask(streamed(COMPLETIONS))).body == PLAIN
        assert vllm.num_asked == num_asked
        assert {ASKS_USAGE in call.body for call in worker.calls} == {mode == "all"}


async def test_an_unstreamed_request_is_forwarded_unchanged(bench: Bench) -> None:
    worker = await bench.worker()
    await bench.ask(post(completion(stream=False)))
    assert worker.calls[0].body == completion(stream=False)


async def test_a_stream_that_dies_after_its_finish_keeps_it(bench: Bench) -> None:
    """The last chunk waits for the next one, which never comes."""
    last = chunk([piece("b", "stop")])
    may_die = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD + chunked(BEGUN + last, end=False))
        await may_die.wait()
        call.reset()

    await bench.worker(script=script)
    client: Client = await bench.client()
    await client.send(streamed(COMPLETIONS))
    await client.head()
    seen = await client.event() + await client.event()
    assert seen == BEGUN
    may_die.set()
    assert await client.event() == last
    assert b'"error"' in await client.event()
    assert await client.piece() == b""
    await until(lambda: any("aborted" in line for line in bench.gateway.log), "the abort is logged")


async def test_several_processes_merge_their_verification() -> None:
    """Counts are per process; the page has the sum, and each worker once."""
    async with running("--processes", "2") as bench:
        worker = await bench.worker(script=Vllm())
        for _ in range(12):
            assert (await bench.ask(streamed(COMPLETIONS))).body == PLAIN
        (merged,) = (await bench.gateway.admin("GET", "/admin/verify")).json["workers"]
        assert merged["worker"] == worker.id
        assert merged["prompts"]["counted"] == 12
        assert merged["token_parity"] == "agree"
        assert merged["sent"]["prompt_tokens"] == 36
        assert (await bench.gateway.metrics())[f'kvgate_prompt_token_mismatch{{worker="{worker.id}"}}'] == 0


async def test_a_worker_with_other_token_counts_is_named() -> None:
    async with running() as bench:
        worker = await bench.worker(script=Vllm())
        metric = f'kvgate_prompt_token_mismatch{{worker="{worker.id}"}}'
        for num in range(3):
            assert (await bench.gateway.metrics()).get(metric, 0) == 0, num
            body = json.dumps({"model": "m", "stream": True, "prompt": list(range(50))}).encode()
            assert (await bench.ask(post(body))).body == PLAIN
        assert (await bench.gateway.metrics())[metric] == 1
        assert await bench.gateway.logged("prompt tokens differ from kvgate's")
        (merged,) = (await bench.gateway.admin("GET", "/admin/verify")).json["workers"]
        difference = merged["prompts"]["first_difference"]
        assert (difference["gateway_tokens"], difference["engine_tokens"], difference["position"]) == (
            50,
            3,
            None,
        )
        assert merged["mispredictions"]["tokens_differ"] == sum(merged["mispredictions"].values())
