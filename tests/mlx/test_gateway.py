"""The gateway before real MLX servers: the engine's own cached-token counts judge each prediction."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from urllib.error import HTTPError

import pytest

from gateway.core.prediction import prediction_error
from tests.mlx.engine import MlxWorker
from tests.support.blockless import complete, converse, converse_in_chats, explained, text, verified
from tests.support.engine_figures import EXPLAINED, STAYED, EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import post
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

Pair = tuple[MlxWorker, MlxWorker]
BLOCK = 16
SLOW_S, NUM_BEFORE, NUM_AFTER = 1.5, 6, 40


@pytest.fixture(scope="module")
def gateway(workers: Pair) -> Iterator[GatewayProcess]:
    flags = [flag for worker in workers for flag in ("--worker", worker.url)]
    with GatewayProcess(*flags, "--tokenizer", str(workers[0].model), "--expose-headers") as process:
        yield process


def test_it_is_recognized_and_checked_without_harm(gateway: GatewayProcess, workers: Pair) -> None:
    engines = [endpoint["engine"] for endpoint in gateway.admin("/admin/workers")["endpoints"]]
    assert engines == ["mlx", "mlx"]
    checked = gateway.check("--worker", workers[0].url, "--tokenizer", str(workers[0].model))
    assert "approximate  (mlx" in checked and "publishes no KV events" in checked
    assert "WRONG" not in checked and "cached tokens" not in checked
    assert workers[0].is_ready()


def test_conversations_stay_where_their_prefix_is(
    gateway: GatewayProcess, workers: Pair, figures: EngineFigures
) -> None:
    conversations = converse(gateway, workers[0].name)
    later = [(turns[0], turn) for turns in conversations for turn in turns[1:]]
    num_stayed = sum(turn.worker == first.worker for first, turn in later)
    num_hits = sum(turn.cached >= first.body["usage"]["prompt_tokens"] - 1 for first, turn in later)
    figures.add(STAYED, "MLX (mlx-lm 0.32.2)", num_stayed, len(later))
    assert len({turns[0].worker for turns in conversations}) == 2
    assert num_stayed >= 0.95 * len(later)
    assert num_hits >= num_stayed


def test_predictions_are_right_to_a_block(gateway: GatewayProcess, workers: Pair) -> None:
    prompt, before = text("grows"), verified(gateway)
    answers = [complete(gateway, workers[0].name, prompt + text(f"end {i}", 5)) for i in range(6)]
    assert answers[0].predicted == 0
    assert all(prediction_error(a.predicted, a.cached, BLOCK) == 0 for a in answers)
    after = verified(gateway)
    assert after.num_compared > before.num_compared and after.num_wrong == before.num_wrong
    assert any(a.cached % BLOCK and a.predicted != a.cached for a in answers[1:])


def test_chats_are_tokenized_as_it_renders_them(gateway: GatewayProcess, workers: Pair) -> None:
    parts = [{"type": "text", "text": each} for each in ("one ", "two ", "three ")]
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    messages: list[dict[str, object]] = [
        {"role": "system", "content": text("system", 40)},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "the time"},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    answers = []
    for turn in range(4):
        messages.append({"role": "user", "content": text(f"turn {turn}", 30)})
        body = {"model": workers[0].name, "messages": messages, "max_tokens": 4, "temperature": 0}
        answers.append(post(gateway, "/v1/chat/completions", body))
        messages.append({"role": "assistant", "content": answers[-1].text})
    assert [answer.status for answer in answers] == [200] * 4
    assert all(prediction_error(a.predicted, a.cached, BLOCK) == 0 for a in answers)
    assert answers[-1].cached > answers[-1].body["usage"]["prompt_tokens"] // 2
    (status,) = (each for each in gateway.admin("/admin/tokenizer")["models"] if each["workers"])
    assert (status["source"], status["rendering"]) == ("local", "mlx")


def test_growing_chats_are_predicted_to_the_answers_that_they_repeat(
    gateway: GatewayProcess, workers: Pair, figures: EngineFigures
) -> None:
    """Answers of 64 tokens, which were never sent there: what the next turn finds of them is unknown."""
    before = verified(gateway)
    chats = converse_in_chats(gateway, workers[0].name)
    pairs = [pair for turns in chats for pair in pairwise(turns) if pair[0].worker == pair[1].worker]
    figures.add(EXPLAINED, "MLX (mlx-lm 0.32.2)", sum(explained(*pair, BLOCK) for pair in pairs), len(pairs))
    after = verified(gateway)
    assert len(pairs) >= 0.9 * sum(len(turns) - 1 for turns in chats)
    assert all(explained(*pair, BLOCK) for pair in pairs)
    assert after.num_wrong == before.num_wrong and after.num_unknown >= before.num_unknown + len(pairs) // 2


def test_one_slow_answer_keeps_no_requests_from_its_worker(workers: Pair) -> None:
    """Both servers stand still meanwhile, so that it is slow at the one that was chosen."""
    flags = [flag for worker in workers for flag in ("--worker", worker.url)]
    name = workers[0].name
    with (
        GatewayProcess(*flags, "--tokenizer", str(workers[0].model), "--expose-headers") as gateway,
        ThreadPoolExecutor(1) as thread,
    ):
        for number in range(NUM_BEFORE):
            complete(gateway, name, text(f"before {number}", 20))
        pids = [pid for worker in workers for pid in worker.living_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            slow = thread.submit(complete, gateway, name, text("slow", 20))
            wait_until(lambda: gateway.in_flight() == 1, 10)
            time.sleep(SLOW_S)  # the answer's delay
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert slow.result(timeout=patience(60)).status == 200
        after = Counter(complete(gateway, name, text(f"after {i}", 20)).worker for i in range(NUM_AFTER))
        assert len(after) == 2 and min(after.values()) >= NUM_AFTER // 5, after


def test_lists_of_prompts_are_refused_and_never_reach_the_engine(
    gateway: GatewayProcess, workers: Pair
) -> None:
    for prompt in (["a", "b"], ["a"], [5, 6, 7], [[5], [6, 7]]):
        answer = complete(gateway, workers[0].name, prompt)
        assert answer.status == 400 and "one string as 'prompt'" in answer.error
    assert all(worker.is_ready() for worker in workers)
    assert complete(gateway, workers[0].name, "a").status == 200


def test_names_that_it_does_not_list_never_reach_it(gateway: GatewayProcess, workers: Pair) -> None:
    unknown = complete(gateway, "no/such-model", "a")
    assert unknown.status == 404 and "no/such-model" in unknown.error
    with pytest.raises(HTTPError) as refused:
        workers[0].post("/v1/completions", {"model": "no/such-model", "prompt": "a", "max_tokens": 1})
    with refused.value:
        assert refused.value.code == 404
    assert complete(gateway, workers[0].name, "a").status == 200


def test_a_list_ends_its_generation_and_a_restart_brings_it_back(
    gateway: GatewayProcess, workers: Pair
) -> None:
    """The engine's bug, from which the gateway keeps it: an error is its answer, or a closed connection."""
    worker = workers[0]
    with pytest.raises(OSError) as failed:
        worker.post("/v1/completions", {"model": worker.name, "prompt": ["a", "b"], "max_tokens": 1})
    if isinstance(failed.value, HTTPError):
        failed.value.close()
    wait_until(lambda: not worker.is_ready(), 20)
    wait_until(lambda: sum(each["is_up"] for each in gateway.workers()) == 1, 60)
    answers = [complete(gateway, worker.name, text(i, 10)) for i in range(4)]
    assert {answer.status for answer in answers} == {200} and len({a.worker for a in answers}) == 1
    worker.restart().wait_ready()
    wait_until(lambda: all(each["is_up"] for each in gateway.workers()), 60)
