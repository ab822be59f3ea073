"""The gateway process before two real vLLM workers, used through OpenAI's client, and SIGKILL of a worker.

The reference is the engine's own report: `cached_tokens` of each answer, compared with the prediction.
"""

import json
import random
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.engine_figures import EngineFigures
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.chats import BLOCK, Pair, chat, index, settle, started, text
from tests.vllm.engine import VllmWorker
from tests.vllm.sdk import client

pytestmark = pytest.mark.ci

NUM_TRIES = 10


@pytest.fixture(scope="module")
def gateway(vllm_pair: Pair, vllm_model: Path) -> Iterator[GatewayProcess]:
    with started(vllm_pair, vllm_model) as process:
        yield process


def test_streams_of_both_workers_are_exact(gateway: GatewayProcess) -> None:
    wait_until(lambda: gateway.streams() == ["exact", "exact"], 20)
    assert [m.id for m in client(gateway.url).models.list()] == ["m"]


def test_second_turn_goes_to_the_first_turns_worker_and_its_hit_is_predicted(
    gateway: GatewayProcess, figures: EngineFigures
) -> None:
    for seed in range(6):
        messages = [
            {"role": "system", "content": text(f"system {seed}")},
            {"role": "user", "content": text(f"user {seed}", 40)},
        ]
        first = chat(gateway, messages)
        assert first.cached == first.predicted
        settle(gateway)
        messages += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": text(f"more {seed}", 30)},
        ]
        second = chat(gateway, messages)
        figures.add_equal("vLLM 0.32", [(each.predicted, each.cached) for each in (first, second)])
        assert second.worker == first.worker
        assert second.predicted == second.cached
        assert second.cached >= first.answer.usage.prompt_tokens // BLOCK * BLOCK - BLOCK
        record = gateway.admin(f"/admin/decisions/{second.decision}")
        assert record["outcome"]["reported_cached_tokens"] == second.cached
        assert {c["worker"] for c in record["candidates"]} == set(gateway.worker_ids())


def test_hits_of_streams_and_token_ids_are_predicted(gateway: GatewayProcess) -> None:
    ids = [random.Random("ids").randrange(100, 8000) for _ in range(200)]
    body = {"model": "m", "prompt": ids, "max_tokens": 4, "temperature": 0}
    raw = client(gateway.url).completions.with_raw_response.create(**body)
    worker = raw.headers["x-kvgate-worker"]
    settle(gateway)
    stream = client(gateway.url).completions.with_raw_response.create(
        **body, stream=True, stream_options={"include_usage": True}
    )
    assert stream.headers["x-kvgate-worker"] == worker
    usage = [event.usage for event in stream.parse() if event.usage][-1]
    assert usage.prompt_tokens_details.cached_tokens == int(stream.headers["x-kvgate-overlap-tokens"]) == 192


def test_salted_prompts_share_no_prefix(gateway: GatewayProcess) -> None:
    messages = [{"role": "user", "content": text("salted", 150)}]
    plain = chat(gateway, messages)
    settle(gateway)
    salted = chat(gateway, messages, extra_body={"cache_salt": "tenant-a"})
    assert (salted.predicted, salted.cached) == (0, 0)
    settle(gateway)
    again = chat(gateway, messages, extra_body={"cache_salt": "tenant-a"})
    other = chat(gateway, messages, extra_body={"cache_salt": "tenant-b"})
    assert again.predicted == again.cached == plain.answer.usage.prompt_tokens // BLOCK * BLOCK
    assert (other.predicted, other.cached) == (0, 0)


def streamed(url: str, path: str, body: dict[str, Any]) -> bytes:
    """Bytes of a stream, without the fields that differ from request to request."""
    data = json.dumps(body | {"model": "m", "stream": True, "max_tokens": 6, "temperature": 0}).encode()
    ask = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        ask, timeout=patience(120)
    ) as answer:
        return re.sub(rb'"id":"[^"]*"|"created":\d+', b"", answer.read())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}),
        ("/v1/completions", {"prompt": "once upon"}),
        ("/v1/completions", {"prompt": "once upon", "echo": True, "logprobs": 1}),
    ],
)
def test_stream_with_injected_usage_equals_the_engines_own_stream(
    vllm_pair: Pair, vllm_model: Path, path: str, body: dict[str, Any]
) -> None:
    with started(vllm_pair[:1], vllm_model, "--usage-injection", "all") as process:
        for _ in range(NUM_TRIES):  # a slow API server of the engine puts two tokens into one event
            plain = streamed(vllm_pair[0].url, path, body)
            asked = streamed(process.url, path, body)
            if asked == plain:
                break
        (worker,) = process.workers()
    assert b"[DONE]" in plain and b"usage" not in plain
    assert asked == plain
    assert worker["predictions"]["token_parity"] == "agree"


def test_tokens_and_counters_agree_with_the_engines_own(
    gateway: GatewayProcess,
) -> None:
    for i in range(3):
        chat(gateway, [{"role": "user", "content": text(f"agree {i}", 60)}])
    for worker in gateway.admin("/admin/verify")["workers"]:
        assert worker["token_parity"] == "agree"
        assert worker["prompts"]["counted_differing"] == worker["prompts"]["sampled_differing"] == 0
        assert worker["mispredictions"]["tokens_differ"] == worker["mispredictions"]["not_reported"] == 0

    def is_counted() -> bool:
        workers = gateway.admin("/admin/verify")["workers"]
        return bool(workers) and all(
            w["engine"]["prompt_tokens"] >= w["sent"]["prompt_tokens"] > 0 for w in workers
        )

    wait_until(is_counted, 10)


def test_too_long_prompt_gets_the_engines_own_error(gateway: GatewayProcess) -> None:
    with pytest.raises(openai.BadRequestError, match="context length"):
        client(gateway.url).completions.create(model="m", prompt=[5] * 9000, max_tokens=1)


def test_disconnect_of_a_client_stops_its_request_in_the_engine(
    gateway: GatewayProcess, vllm_pair: Pair
) -> None:
    stream = client(gateway.url).completions.create(
        model="m", prompt="once", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: all(num_running(worker) == 0 for worker in vllm_pair), 20)
    wait_until(lambda: gateway.in_flight() == 0, 5)


def num_running(worker: VllmWorker) -> float:
    page = worker.get("/metrics").decode()
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_replay_restores_the_index_after_a_restart_of_the_gateway(vllm_pair: Pair, vllm_model: Path) -> None:
    messages = [{"role": "user", "content": text("restart", 200)}]
    with started(vllm_pair, vllm_model) as before:
        wait_until(lambda: before.streams() == ["exact", "exact"], 20)
        first = chat(before, messages)
    with started(vllm_pair, vllm_model) as after:
        wait_until(lambda: after.streams() == ["exact", "exact"], 20)
        second = chat(after, messages)
        assert second.worker == first.worker
        assert second.predicted == second.cached > 0


def test_killed_engine_loses_no_request_and_its_blocks_are_forgotten(
    gateway: GatewayProcess, vllm_pair: Pair
) -> None:
    messages = [{"role": "user", "content": text("killed", 200)}]
    first = chat(gateway, messages)
    settle(gateway)
    victim = next(w for w in vllm_pair if w.url.endswith(first.worker))
    with ThreadPoolExecutor(4) as pool:
        going = [pool.submit(chat, gateway, [{"role": "user", "content": text(f"k{i}")}]) for i in range(24)]
        victim.kill()
        going += [pool.submit(chat, gateway, messages) for _ in range(4)]
        answers = [future.result() for future in going]
    assert all(answer.text is not None for answer in answers)
    victim.start().wait_ready()
    wait_until(lambda: gateway.streams() == ["exact", "exact"], 30)
    restarted = next(w for w in index(gateway) if w["worker"] == first.worker)
    assert restarted["blocks"] <= 1
    settle(gateway)
    after = chat(gateway, [{"role": "user", "content": text("killed", 200) + " again"}])
    assert after.predicted == after.cached


def test_worker_tokenizes_where_the_gateway_has_no_tokenizer(vllm_pair: Pair, tmp_path: Path) -> None:
    (file := tmp_path / "kvgate.toml").write_text('[models.m]\nrenderer = "worker"\n')
    workers = [flag for worker in vllm_pair for flag in ("--worker", worker.url)]
    flags = ("--config", str(file), "--expose-headers", "KVGATE_TOKENIZER_TIMEOUT_S=5")
    with GatewayProcess(*workers, *flags) as asking:
        wait_until(lambda: asking.streams() == ["exact", "exact"], 20)
        messages = [{"role": "user", "content": text("asked", 150)}]
        chat(asking, messages)
        settle(asking)
        again = chat(asking, messages)
        assert again.predicted == again.cached > 0
        assert 'kvgate_prompts_total{source="worker"}' in asking.metrics()


def test_check_reports_exact_and_verified(vllm_pair: Pair, vllm_model: Path) -> None:
    out = GatewayProcess.check("--worker", vllm_pair[0].url, "--tokenizer", str(vllm_model))
    assert "exact and verified" in out
