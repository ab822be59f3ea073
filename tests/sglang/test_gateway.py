"""The gateway before a real SGLang server: the engine's own cached-token counts judge each prediction."""

import json
import random
import urllib.request
from collections.abc import Iterator

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_figures import EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import (
    TalkAnswer,
    ask,
    chat,
    complete,
    gateway_of,
    ids,
    is_exact,
    post,
    settle,
    text,
)
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

NUM_TOKENS = 4096
"""The cache's size: some twenty prompts, then it evicts."""


PAGES = [pytest.param(1, id="page 1"), pytest.param(16, id="page 16", marks=pytest.mark.ci)]


@pytest.fixture(scope="module", params=PAGES)
def worker(request: pytest.FixtureRequest, start_module_sglang: Start) -> Iterator[SglangWorker]:
    started = start_module_sglang(page_size=request.param, num_tokens=NUM_TOKENS).wait_ready()
    yield started
    started.stop()  # the next page size needs its cores


@pytest.fixture(scope="module")
def gateway(worker: SglangWorker) -> Iterator[GatewayProcess]:
    with gateway_of(worker) as process:
        yield process


def full_pages(answer: TalkAnswer, page: int) -> int:
    """Most tokens of a prompt that an engine takes from its cache: whole pages, and never the last token."""
    num: int = answer.body["usage"]["prompt_tokens"]
    return (num - 1) // page * page


def test_texts_and_token_ids_are_predicted(gateway: GatewayProcess, worker: SglangWorker) -> None:
    page = worker.options.page_size
    for prompt in (text("plain"), ids("plain", 100), [7] * 40):
        first, again = complete(gateway, prompt), complete(gateway, prompt)
        assert first.predicted == first.cached < page
        assert again.predicted == again.cached == full_pages(again, page) > 0
        assert again.text == first.text
        prompt = prompt + (" more of it" if isinstance(prompt, str) else [9] * 20)  # type: ignore[operator]
        longer = complete(gateway, prompt)
        assert longer.predicted == longer.cached >= again.cached - page


def test_turns_of_a_chat_are_predicted(gateway: GatewayProcess, worker: SglangWorker) -> None:
    for seed in range(4):
        turns = [text(f"user {seed}", 50)]
        for turn in range(3):
            answer = chat(gateway, *turns)
            assert answer.predicted == answer.cached, (seed, turn)
            turns += [answer.text, text(f"more {seed} {turn}", 20)]
        assert answer.cached > answer.body["usage"]["prompt_tokens"] // 2


def test_blocks_of_the_engine_s_own_route_are_known(gateway: GatewayProcess, worker: SglangWorker) -> None:
    prompt = ids("native", 120)
    answer = ask(gateway, "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 2}})
    assert answer.status == 200 and answer.body["meta_info"]["cached_tokens"] < worker.options.page_size
    after = complete(gateway, prompt)
    assert after.predicted == after.cached == full_pages(after, worker.options.page_size)


def test_copies_of_a_cold_prompt_are_no_wrong_prediction(
    gateway: GatewayProcess, worker: SglangWorker
) -> None:
    """The engine computes the prompt first, and its copies then report it as cached."""
    prompt, before = ids("copies", 100), mispredictions(gateway)
    several = complete(gateway, prompt, n=2)
    assert several.predicted < worker.options.page_size < several.cached
    assert len(several.body["choices"]) == 2
    one = complete(gateway, prompt)
    assert one.predicted == one.cached == full_pages(one, worker.options.page_size)
    assert mispredictions(gateway) == before


def test_check_finds_an_exact_worker_that_reports_cached_tokens(worker: SglangWorker) -> None:
    found = GatewayProcess.check("--worker", worker.url, "--tokenizer", str(worker.model))
    assert "exact and verified" in found and "WRONG" not in found, found


def mispredictions(gateway: GatewayProcess) -> list[str]:
    return [
        line for line in gateway.metrics().splitlines() if line.startswith("kvgate_mispredictions_total{")
    ]


def test_streams_are_predicted(gateway: GatewayProcess, worker: SglangWorker) -> None:
    prompt = ids("stream", 90)
    complete(gateway, prompt)
    settle(gateway)
    body = {"model": "m", "prompt": prompt, "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(f"{gateway.url}/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=patience(60)
    ) as answer:
        predicted = int(answer.headers["x-kvgate-overlap-tokens"])
        lines = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    usage = [json.loads(line)["usage"] for line in lines if json.loads(line).get("usage")][-1]
    assert (
        predicted
        == usage["prompt_tokens_details"]["cached_tokens"]
        == 89 // worker.options.page_size * (worker.options.page_size)
    )


def test_evictions_are_followed(
    gateway: GatewayProcess, worker: SglangWorker, figures: EngineFigures
) -> None:
    """Shared prefixes of random lengths, in three times as many tokens as the cache has."""
    rng = random.Random("evictions")
    roots = [ids(f"root {i}", 400) for i in range(6)]
    answers = []
    for _ in range(60):
        prompt = rng.choice(roots)[: rng.randrange(50, 400)] + [rng.randrange(100, 8000) for _ in range(40)]
        answers.append(complete(gateway, prompt))
    engine = f"SGLang 0.5.23, pages of {worker.options.page_size}"
    figures.add_equal(engine, [(a.predicted, a.cached) for a in answers])
    assert [a.predicted for a in answers] == [a.cached for a in answers]
    assert sum(a.body["usage"]["prompt_tokens"] for a in answers) > 3 * NUM_TOKENS
    assert sum(a.cached > 0 for a in answers) > 20


def test_a_flush_is_followed(gateway: GatewayProcess, worker: SglangWorker) -> None:
    prompt = ids("flushed")
    complete(gateway, prompt)
    settle(gateway)
    wait_until(worker.flush, 20)
    complete(gateway, [5] * 30)  # events of a flush come with the next step
    after = complete(gateway, prompt)
    assert after.predicted == after.cached < worker.options.page_size


def test_a_gateway_that_starts_late_knows_the_cache_by_replay(
    gateway: GatewayProcess, worker: SglangWorker
) -> None:
    prompts = [ids(f"late {i}", 150) for i in range(5)]
    for prompt in prompts:
        complete(gateway, prompt)
    with gateway_of(worker) as late:
        answers = [
            post(late, "/v1/completions", {"model": "m", "prompt": p, "max_tokens": 1}) for p in prompts
        ]
    assert [a.predicted for a in answers] == [a.cached for a in answers]
    assert all(a.cached >= 144 for a in answers)


def test_a_kill_empties_the_index_and_a_restart_fills_it(
    gateway: GatewayProcess, worker: SglangWorker
) -> None:
    prompt = ids("killed")
    complete(gateway, prompt)
    worker.restart().wait_ready()
    is_exact(gateway)
    cold, warm = complete(gateway, prompt), complete(gateway, prompt)
    assert cold.predicted == cold.cached < worker.options.page_size
    assert warm.predicted == warm.cached == full_pages(warm, worker.options.page_size)
