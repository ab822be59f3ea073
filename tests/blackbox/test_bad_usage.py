"""Impossible token counts: the client gets the answer unchanged, and the gateway does not use them."""

import json
from pathlib import Path
from typing import Any

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
from tests.support.blackbox.scripted_worker import FakeWorker, says

JSON = (b"Content-Type", b"application/json")
LENGTH = 4096
MODEL = {"id": "m", "max_model_len": LENGTH}
COUNTED = (
    "worker_output_tokens",
    "worker_reported_answers",
    "worker_reported_prompt_tokens",
    "worker_reported_cached_tokens",
    "prediction_compared_tokens",
    "prediction_error_tokens",
)

BAD = {
    "negative": {"prompt_tokens": 3, "completion_tokens": -9},
    "a negative prompt": {"prompt_tokens": -3, "completion_tokens": 1},
    "longer than the model's length": {"prompt_tokens": LENGTH + 1, "completion_tokens": 1},
    "an answer longer than that": {"prompt_tokens": 3, "completion_tokens": LENGTH + 1},
    "2^63": {"prompt_tokens": 1 << 63, "completion_tokens": 1 << 63},
    "10^400": {"prompt_tokens": 10**400, "completion_tokens": 1},
    "more cached than there are": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    "negative cached": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -4}},
    "a boolean": {"prompt_tokens": True, "completion_tokens": 1},
    "a fraction": {"prompt_tokens": 3, "completion_tokens": 1.5},
    "text": {"prompt_tokens": "3", "completion_tokens": "1"},
}


async def refused(bench: Bench) -> float:
    return await bench.gateway.total("kvgate_worker_invalid_usages_total")


async def counted(bench: Bench) -> dict[str, float]:
    return {name: await bench.gateway.total(f"kvgate_{name}_total") for name in COUNTED}


@pytest.mark.parametrize("usage", BAD.values(), ids=BAD)
@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
async def test_impossible_usage_is_not_counted(bench: Bench, usage: Any, is_stream: bool) -> None:
    before = await counted(bench)
    body = json.dumps({"choices": [], "usage": usage}).encode()
    stream = event("a") + b"data: " + body + b"\n\n" + DONE
    script = says(SSE_HEAD + chunked(stream)) if is_stream else says(wire(200, body, JSON))
    worker = await bench.worker(MODEL, script=script)
    more = {"stream_options": {"include_usage": True}} if is_stream else {}
    answer = await bench.ask(post(completion(stream=is_stream, **more)))
    assert (answer.status, answer.body) == (200, stream if is_stream else body)
    assert await refused(bench) == 1
    assert await counted(bench) == before
    id = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"][0]
    outcome = (await bench.gateway.admin("GET", f"/admin/decisions/{id}")).json["outcome"]
    assert (outcome["reported_prompt_tokens"], outcome["reported_cached_tokens"]) == (None, None)
    await bench.gateway.logged(rf"worker {worker.id}: usage ignored \(")
    good = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    worker.script = says(wire(200, json.dumps({"usage": good}).encode(), JSON))
    await bench.ask(post(completion()))
    assert await refused(bench) == 1
    changes = {name: value - before[name] for name, value in (await counted(bench)).items()}
    assert (changes["worker_output_tokens"], changes["worker_reported_cached_tokens"]) == (2, 1)


ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "embeddings": ("/v1/embeddings", {"input": "hi"}),
}


@pytest.mark.parametrize(("path", "fields"), ROUTES.values(), ids=ROUTES)
async def test_impossible_usage_is_rejected_on_every_route(
    bench: Bench, path: str, fields: dict[str, Any]
) -> None:
    by_name = path in ("/v1/messages", "/v1/responses")
    usage = {"input_tokens": 5, "output_tokens": -9} if by_name else BAD["negative"]
    body = json.dumps({"id": "x", "usage": usage}).encode()
    await bench.worker(MODEL, script=says(wire(200, body, JSON)))
    answer = await bench.ask(post(json.dumps({"model": "m", **fields}).encode(), target=path))
    assert answer.status == 200
    assert await refused(bench) == 1


async def test_rejected_usage_is_logged_once_a_minute() -> None:
    async with running() as bench:
        body = json.dumps({"usage": BAD["negative"]}).encode()
        worker = await bench.worker(MODEL, script=says(wire(200, body, JSON)))
        client = await bench.client()
        for _ in range(50):
            await client.ask(post(completion()))
        assert await refused(bench) == 50
        lines = [line for line in bench.gateway.log if "usage ignored" in line]
        assert len(lines) == 1 and worker.id in lines[0]


async def test_impossible_usage_changes_no_quota_recording_or_log_line(tmp_path: Path) -> None:
    """A worker can neither drain nor fill a tenant's bucket, and no absurd figure is recorded."""
    file, record = tmp_path / "kvgate.toml", tmp_path / "record.jsonl"
    file.write_text('[tenants."*"]\ntokens_per_min = 1000\n')
    flags = ("--config", str(file), "--record", str(record), "--log-requests")
    async with running(*flags) as bench:
        worker = await bench.worker(MODEL)
        left: list[bytes | None] = []
        for usage in (
            {"prompt_tokens": 10**9, "completion_tokens": 10**9},
            {"prompt_tokens": 3, "completion_tokens": -(10**9)},
        ):
            worker.script = says(wire(200, json.dumps({"usage": usage}).encode(), JSON))
            for _ in range(3):
                answer = await bench.ask(post(completion([1, 2, 3])))
                assert answer.status == 200, answer
                left.append(answer.value(b"x-ratelimit-remaining-tokens"))
        assert [int(each or 0) for each in left] == sorted([int(each or 0) for each in left], reverse=True)
        num_bytes = len(json.dumps({"usage": {"prompt_tokens": 10**9, "completion_tokens": 10**9}}))
        assert int(left[-1] or 0) >= 1000 - 6 * 3 - 6 - 6 * num_bytes // 4, (
            "prompts, and what the texts suggest"
        )
        flow = (await bench.gateway.admin("GET", "/admin/admission")).body
        assert b"000000" not in flow
        lines = [line for line in bench.gateway.log if "000000" in line and "usage ignored" not in line]
        assert not lines
    assert record.read_text().count("\n") >= 6 and "000000000" not in record.read_text()


async def test_impossible_usage_of_a_prefill_worker_is_ignored() -> None:
    """Token counts of a prefill worker reach no decode worker, and are not counted."""
    async with running("--connector", "nixl", "--disaggregation", "always") as bench:
        prefill, decode = await FakeWorker([MODEL]).start(), await FakeWorker([MODEL]).start()
        bench.workers += [prefill, decode]
        result = {
            "remote_engine_id": "e",
            "remote_request_id": "r",
            "remote_block_ids": [[1]],
            "remote_host": "h",
            "remote_port": 1,
            "tp_size": 1,
        }
        usage = {"prompt_tokens": -5, "prompt_tokens_details": {"cached_tokens": 10**9}}
        body = json.dumps({"choices": [], "usage": usage, "kv_transfer_params": result}).encode()
        prefill.script = says(wire(200, body, JSON))
        decode.script = says(wire(200, json.dumps({"usage": {"prompt_tokens": 3}}).encode(), JSON))
        for worker, role in ((prefill, "prefill"), (decode, "decode")):
            asked = json.dumps({"url": worker.url, "role": role}).encode()
            await bench.gateway.admin("POST", "/admin/workers", asked)
        for worker in (prefill, decode):
            await bench.gateway.logged(rf"worker {worker.url} joined")
        prompt = list(range(3000))
        answer = await bench.ask(post(completion(prompt), target=COMPLETIONS))
        assert answer.status == 200
        assert len(prefill.calls) == 1, "it was split"
        assert b"remote_prefill_cached_tokens" not in decode.calls[0].body
        assert await refused(bench) == 1
