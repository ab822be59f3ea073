"""A real SGLang server with two data-parallel ranks: each has a cache, events and a proof of its own."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_figures import EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import PROVEN, ask, complete, gateway_of, ids, is_exact, post, text
from tests.support.gateway_process import GatewayProcess
from tests.support.tenants import salted

PAGE, NUM_TOKENS, NUM_RANKS = 16, 4096, 2


@pytest.fixture(scope="module")
def worker(start_module_sglang: Start) -> SglangWorker:
    options = {"page_size": PAGE, "num_tokens": NUM_TOKENS, "num_ranks": NUM_RANKS}
    return start_module_sglang(**options).wait_ready()


@pytest.fixture(scope="module")
def gateway(worker: SglangWorker) -> Iterator[GatewayProcess]:
    with gateway_of(worker) as process:
        yield process


def cached_at(worker: SglangWorker, rank: int, prompt: list[int]) -> int:
    """Cached tokens of a prompt at a rank, by the engine alone."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = json.loads(worker.post("/v1/completions", body, x_data_parallel_rank=str(rank)))
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def rank_of(worker_id: str) -> int:
    return int(worker_id.rpartition("#")[2])


@pytest.mark.ci
def test_requests_reach_the_rank_that_was_chosen(gateway: GatewayProcess, worker: SglangWorker) -> None:
    """The first requests come at once, so that load spreads them: an idle fleet may prefer one rank."""
    prompts = [ids(f"ranks {i}", 100) for i in range(8)]
    body = {"model": "m", "temperature": 0, "max_tokens": 4}
    with ThreadPoolExecutor(len(prompts)) as clients:
        bodies = [body | {"prompt": prompt} for prompt in prompts]
        first = list(clients.map(partial(post, gateway, "/v1/completions"), bodies))
    again = [complete(gateway, prompt) for prompt in prompts]
    assert [(answer.predicted, answer.cached) for answer in first] == [(0, 0)] * 8
    assert [(answer.predicted, answer.cached) for answer in again] == [(96, 96)] * 8
    assert [answer.worker for answer in again] == [answer.worker for answer in first]
    assert {rank_of(answer.worker) for answer in first} == {0, 1}
    for prompt, answer in zip(prompts, first, strict=True):
        rank = rank_of(answer.worker)
        assert cached_at(worker, rank, prompt) == 96
        assert cached_at(worker, 1 - rank, prompt) == 0


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": text("chat", 40)}], "max_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": text("messages", 40)}], "max_tokens": 2},
    "/v1/responses": {"input": text("responses", 40), "max_output_tokens": 2},
}


@pytest.mark.ci
@pytest.mark.parametrize("path", ROUTES)
def test_each_route_reaches_its_rank(gateway: GatewayProcess, path: str) -> None:
    """Three times the same: one that went elsewhere would be cold."""
    answers = [ask(gateway, path, ROUTES[path]) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert len({answer.worker for answer in answers}) == 1
    cold, *warm = (answer.cached for answer in answers)
    assert cold < PAGE <= 48 <= min(warm), [answer.cached for answer in answers]


@pytest.mark.ci
def test_the_native_route_reaches_its_rank(gateway: GatewayProcess, worker: SglangWorker) -> None:
    """The engine reads no header there; such requests are routed by load."""
    for i in range(6):
        prompt = ids(f"generate {i}", 60)
        answer = ask(gateway, "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2}})
        assert answer.status == 200 and answer.cached < PAGE
        rank = rank_of(answer.worker)
        assert (cached_at(worker, 1 - rank, prompt), cached_at(worker, rank, prompt)) == (0, 48), i


def test_evictions_of_each_rank_are_followed(gateway: GatewayProcess, figures: EngineFigures) -> None:
    rng = random.Random("rank evictions")
    roots = [ids(f"rank root {i}", 400) for i in range(10)]
    answers = []
    for _ in range(80):
        prompt = rng.choice(roots)[: rng.randrange(50, 400)] + [rng.randrange(100, 8000) for _ in range(40)]
        answers.append(complete(gateway, prompt))
    figures.add_equal("SGLang 0.5.23, two ranks", [(a.predicted, a.cached) for a in answers])
    assert [a.predicted for a in answers] == [a.cached for a in answers]
    for rank in range(NUM_RANKS):
        there = [a for a in answers if rank_of(a.worker) == rank]
        assert sum(a.body["usage"]["prompt_tokens"] for a in there) > 1.5 * NUM_TOKENS
        assert sum(a.cached > 0 for a in there) > 10


def test_each_rank_proves_that_it_keeps_tenants_apart(
    worker: SglangWorker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The ranks of a restarted server prove it again."""
    flags = salted(tmp_path_factory.mktemp("salts"))
    lines = [f"worker {worker.url}#{rank}: {PROVEN}" for rank in range(NUM_RANKS)]
    with gateway_of(worker, flags=flags) as gateway:
        assert [gateway.log().count(line) for line in lines] == [1, 1]
        answers = [complete(gateway, ids(f"proven {i}", 100)) for i in range(4)]
        assert {rank_of(answer.worker) for answer in answers} == {0, 1}
        worker.kill()
        wait_until(lambda: gateway.streams() == [], 60)
        worker.start().wait_ready()
        is_exact(gateway, NUM_RANKS)
        body = {"model": "m", "prompt": ids("after", 100), "max_tokens": 2}
        assert post(gateway, "/v1/completions", body).cached == 0
    found = GatewayProcess.check("--worker", worker.url, *flags)
    assert found.count(PROVEN) == NUM_RANKS
