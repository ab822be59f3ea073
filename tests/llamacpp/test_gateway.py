"""The gateway before real servers of llama.cpp: their own cached-token counts judge each prediction."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from engines.llamacpp import LlamaCpp
from gateway.core.prediction import prediction_error
from tests.llamacpp.engine import NUM_SLOTS, SLOT_TOKENS, LlamaCppWorker
from tests.support.blockless import complete, converse, converse_in_chats, explained, text, verified
from tests.support.engine_figures import EXPLAINED, STAYED, EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import TalkAnswer, post
from tests.support.gateway_process import GatewayProcess

Pair = tuple[LlamaCppWorker, LlamaCppWorker]
BLOCK = 16


@pytest.fixture(scope="module")
def gateway(workers: Pair, model: Path) -> Iterator[GatewayProcess]:
    flags = [flag for worker in workers for flag in ("--worker", worker.url)]
    with GatewayProcess(*flags, "--tokenizer", str(model), "--expose-headers") as process:
        yield process


def test_it_is_recognized_with_its_slots_and_checked(
    gateway: GatewayProcess, workers: Pair, model: Path
) -> None:
    endpoints = gateway.admin("/admin/workers")["endpoints"]
    assert [endpoint["engine"] for endpoint in endpoints] == ["llamacpp", "llamacpp"]
    info = LlamaCpp().parse_info(workers[0].get("/props")).ranks[0]
    assert info.kv_cache_size_tokens == NUM_SLOTS * SLOT_TOKENS
    (listed,) = LlamaCpp().parse_models(workers[0].get("/v1/models"))
    assert (listed.id, listed.max_model_len) == ("m", SLOT_TOKENS)
    checked = gateway.check("--worker", workers[0].url, "--tokenizer", str(model))
    assert "approximate  (llamacpp" in checked and "publishes no KV events" in checked
    assert "WRONG" not in checked


def test_conversations_stay_where_their_prefix_is(gateway: GatewayProcess, figures: EngineFigures) -> None:
    """More conversations than slots: a slot's prompt goes to the server's memory, and comes back from it."""
    conversations = converse(gateway, "m")
    later = [(turns[0], turn) for turns in conversations for turn in turns[1:]]
    num_stayed = sum(turn.worker == first.worker for first, turn in later)
    num_hits = sum(turn.cached >= first.body["usage"]["prompt_tokens"] - 1 for first, turn in later)
    figures.add(STAYED, "llama.cpp b11434", num_stayed, len(later))
    assert len({turns[0].worker for turns in conversations}) == 2
    assert num_stayed >= 0.95 * len(later)
    assert num_hits >= 0.95 * len(later)


def test_predictions_are_right_to_a_block(gateway: GatewayProcess) -> None:
    prompt, before = text("grows"), verified(gateway)
    answers = [complete(gateway, "m", prompt + text(f"end {i}", 5)) for i in range(6)]
    assert answers[0].predicted == 0
    assert all(prediction_error(a.predicted, a.cached, BLOCK) == 0 for a in answers)
    after = verified(gateway)
    assert after.num_compared > before.num_compared and after.num_wrong == before.num_wrong
    assert any(a.cached % BLOCK for a in answers[1:])


def ask_chat(gateway: GatewayProcess, messages: list[dict[str, Any]], **fields: Any) -> TalkAnswer:
    body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0}
    return post(gateway, "/v1/chat/completions", body | fields)


def test_chats_are_tokenized_as_it_renders_them(gateway: GatewayProcess) -> None:
    messages = [{"role": "system", "content": text("system", 40)}]
    answers = []
    for turn in range(4):
        messages.append({"role": "user", "content": text(f"turn {turn}", 30)})
        answers.append(ask_chat(gateway, messages))
        messages.append({"role": "assistant", "content": answers[-1].text})
    assert [answer.status for answer in answers] == [200] * 4
    assert all(prediction_error(a.predicted, a.cached, BLOCK) == 0 for a in answers)
    assert answers[-1].cached > answers[-1].body["usage"]["prompt_tokens"] // 2


def test_growing_chats_are_predicted_to_the_answers_that_they_repeat(
    gateway: GatewayProcess, figures: EngineFigures
) -> None:
    """Answers of 64 tokens, which were never sent there: what the next turn finds of them is unknown."""
    before = verified(gateway)
    chats = converse_in_chats(gateway, "m")
    pairs = [pair for turns in chats for pair in pairwise(turns) if pair[0].worker == pair[1].worker]
    figures.add(EXPLAINED, "llama.cpp b11434", sum(explained(*pair, BLOCK) for pair in pairs), len(pairs))
    after = verified(gateway)
    assert len(pairs) >= 0.9 * sum(len(turns) - 1 for turns in chats)
    assert all(explained(*pair, BLOCK) for pair in pairs)
    assert after.num_wrong == before.num_wrong and after.num_unknown >= before.num_unknown + len(pairs) // 2


def test_every_route_it_serves_is_answered_through_the_gateway(gateway: GatewayProcess) -> None:
    said = {"role": "user", "content": "a river"}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a river", "max_tokens": 4},
        "/v1/chat/completions": {"messages": [said], "max_tokens": 4},
        "/v1/responses": {"input": "a river", "max_output_tokens": 4},
        "/v1/messages": {"messages": [said], "max_tokens": 4},
    }
    answers = {path: post(gateway, path, {"model": "m", **body}) for path, body in bodies.items()}
    assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(bodies, 200)
    assert all("usage" in answer.body for answer in answers.values())


def test_its_own_counts_are_those_of_its_answers(gateway: GatewayProcess, workers: Pair) -> None:
    """Metrics count the cached tokens that answers report, in `usage` and in `timings`."""

    def counted() -> tuple[int, int]:
        found = [LlamaCpp().parse_metrics(worker.get("/metrics").decode())[0] for worker in workers]
        queries = sum(metrics.prefix_cache_queries_total or 0 for metrics in found)
        return int(queries), int(sum(metrics.prefix_cache_hits_total or 0 for metrics in found))

    before = counted()
    answers = [complete(gateway, "m", text("counted")) for _ in range(3)]
    after = counted()
    usages = [answer.body["usage"] for answer in answers]
    assert [answer.body["timings"]["cache_n"] for answer in answers] == [answer.cached for answer in answers]
    assert after[0] - before[0] == sum(usage["prompt_tokens"] for usage in usages)
    assert after[1] - before[1] == sum(answer.cached for answer in answers) > 0


def test_lists_of_prompts_are_answered(gateway: GatewayProcess, workers: Pair) -> None:
    """Each prompt of a list is run; the usage counts the first alone."""
    answer = complete(gateway, "m", [text("one of a list"), text("another of a list", 20)])
    assert answer.status == 200 and len(answer.body["choices"]) == 2
    assert complete(gateway, "m", [5, 6, 7]).status == 200
    assert all(worker.is_ready() for worker in workers)


def test_names_that_it_does_not_list_never_reach_it(gateway: GatewayProcess, workers: Pair) -> None:
    """Asked itself, it answers any name by its one model."""
    asked = {"model": "no-such-model", "prompt": "a", "max_tokens": 1}
    assert json.loads(workers[0].post("/v1/completions", asked))["choices"]
    unknown = complete(gateway, "no-such-model", "a")
    assert unknown.status == 404 and "no-such-model" in unknown.error


def test_prompt_longer_than_a_slot_is_refused(gateway: GatewayProcess, workers: Pair) -> None:
    ids = [5 + i % 1000 for i in range(SLOT_TOKENS + 1)]
    with pytest.raises(HTTPError) as refused:
        workers[0].post("/v1/completions", {"prompt": ids, "max_tokens": 1})
    with refused.value:
        assert refused.value.code == 400
    assert complete(gateway, "m", ids).status == 400
    assert complete(gateway, "m", "a").status == 200


def test_killed_server_is_left_and_comes_back_empty(gateway: GatewayProcess, workers: Pair) -> None:
    prompt = text("lost")
    first = complete(gateway, "m", prompt)
    lost, other = workers if first.worker in workers[0].url else workers[::-1]
    lost.kill()
    wait_until(lambda: sum(each["is_up"] for each in gateway.workers()) == 1, 60)
    assert complete(gateway, "m", prompt).worker in other.url
    lost.restart().wait_ready()
    wait_until(lambda: all(each["is_up"] for each in gateway.workers()), 60)
    again = complete(gateway, "m", prompt)
    assert prediction_error(again.predicted, again.cached, BLOCK) == 0
