"""The gateway before a prefill and two decode workers of real vLLM.

Answers equal those of one worker, second turns go to the worker that has cached their prefix, and a killed
prefill worker costs no request. Tests share the fleet with `test_pd_facts.py`, with prompts of their own; the
last one kills and restarts the prefill worker.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import new_ids
from tests.vllm.pd import TIMEOUT_S, PdFleet
from tests.vllm.sdk import client

NUM_PROMPTS = 50 if os.environ.get("FULL") else 20
"""A multiple of four, the kinds of request that `Answer` sends; each costs two seconds here."""
FLEET_SIZE = 3
TIE = 0.1
"""Difference in log probability up to which two tokens tie: some times the rounding error of bf16."""


def started(fleet: PdFleet, model: Path, *flags: str) -> GatewayProcess:
    decodes = [flag for worker in fleet.decodes for flag in ("--decode", worker.url)]
    workers = "--prefill", fleet.prefill.url, *decodes
    return GatewayProcess(*workers, "--tokenizer", str(model), "--expose-headers", *flags)


@pytest.fixture(scope="module")
def always(vllm_pd: PdFleet, vllm_model: Path) -> Iterator[GatewayProcess]:
    with started(vllm_pd, vllm_model, "--disaggregation", "always") as process:
        wait_until(lambda: process.streams() == ["exact"] * FLEET_SIZE, 60)
        yield process


class Answer:
    """Text and number of prompt tokens of an answer; parts of a stream are joined."""

    def __init__(self, url: str, number: int, *, max_tokens: int = 8) -> None:
        """Send prompt `number`, which also selects chat or completion, streamed or not."""
        self.is_chat, is_stream = number % 2 == 0, number % 4 < 2
        more: dict[str, Any] = (
            {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        )
        common = {"model": "m", "max_tokens": max_tokens, "temperature": 0, **more}
        words = words_of(number)
        api = client(url)
        if self.is_chat:
            answer: Any = api.chat.completions.create(messages=[{"role": "user", "content": words}], **common)
        else:
            answer = api.completions.create(prompt=words, **common)
        self.text, self.num_prompt_tokens = self._whole(list(answer) if is_stream else [answer])

    def _whole(self, parts: list[Any]) -> tuple[str, int]:
        choices = [choice for part in parts for choice in part.choices]
        if self.is_chat:
            texts = [(getattr(choice, "delta", None) or choice.message).content for choice in choices]
        else:
            texts = [choice.text for choice in choices]
        return "".join(text or "" for text in texts), parts[-1].usage.prompt_tokens


def is_near_tie(url: str, number: int, text: str) -> bool:
    """Return whether an answer is the engine's own, or first differs at two about equally likely tokens.

    Which of the two wins depends on the other requests of the same step and on what is cached, in bf16, on
    one worker too: asked again, with the prompt cached, it may choose the other.
    """
    tokens = tokens_with_logprobs(url, number)
    before = ""
    for best, others in tokens:
        is_same = bool(best) and text.startswith(before + best)  # part of a character is an empty text
        likely = [other for other, logprob in others.items() if max(others.values()) - logprob <= TIE]
        if not is_same and any(other and text.startswith(before + other) for other in likely):
            return True
        if best and not is_same:
            return False
        before += best
    return True


def tokens_with_logprobs(url: str, number: int) -> list[tuple[str, dict[str, float]]]:
    """Tokens of the engine's own answer, each with the likeliest tokens at its position."""
    words = words_of(number)
    if number % 2 == 0:
        chat = client(url).chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": words}],
            max_tokens=8,
            temperature=0,
            logprobs=True,
            top_logprobs=5,
        )
        assert chat.choices[0].logprobs and chat.choices[0].logprobs.content
        return [
            (token.token, {other.token: other.logprob for other in token.top_logprobs})
            for token in chat.choices[0].logprobs.content
        ]
    completion = client(url).completions.create(
        model="m", prompt=words, max_tokens=8, temperature=0, logprobs=5
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs and logprobs.tokens and logprobs.top_logprobs
    return list(zip(logprobs.tokens, logprobs.top_logprobs, strict=True))


def words_of(number: int) -> str:
    return " ".join(f"number {i}" for i in new_ids(f"gateway {number}", 60))


def plans(gateway: GatewayProcess) -> dict[str, int]:
    """Requests by plan."""
    found: dict[str, int] = {}
    for line in gateway.metrics().splitlines():
        if line.startswith("kvgate_disaggregation_plans_total{"):
            plan = line.partition('plan="')[2].partition('"')[0]
            found[plan] = found.get(plan, 0) + int(float(line.rpartition(" ")[2]))
    return found


def split_of(gateway: GatewayProcess, decision: str) -> dict[str, Any]:
    split: dict[str, Any] = gateway.admin(f"/admin/decisions/{decision}")["disaggregation"]
    return split


@pytest.mark.ci
def test_workers_have_their_declared_roles(always: GatewayProcess, vllm_pd: PdFleet) -> None:
    endpoints = {e["url"]: e["role"] for e in always.admin("/admin/workers")["endpoints"]}
    assert endpoints == {w.url: "prefill" if w is vllm_pd.prefill else "decode" for w in vllm_pd.workers}


@pytest.mark.ci
def test_disaggregated_answers_equal_those_of_one_worker(always: GatewayProcess, vllm_pd: PdFleet) -> None:
    before = plans(always).get("prefill_decode", 0)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: Answer(always.url, number), range(NUM_PROMPTS)))
    assert plans(always)["prefill_decode"] - before >= NUM_PROMPTS  # more where a pull stalled and failed
    for number, answer in enumerate(answers):
        alone = Answer(vllm_pd.prefill.url, number)
        assert answer.num_prompt_tokens == alone.num_prompt_tokens
        assert answer.text == alone.text or is_near_tie(vllm_pd.prefill.url, number, answer.text), number
    assert always.in_flight() == 0
    assert "kvgate_disaggregation_prompt_mismatches_total 0.0" in always.metrics()


@pytest.mark.ci
def test_second_turn_goes_directly_to_the_decode_worker_of_the_first(
    always: GatewayProcess, vllm_pd: PdFleet, vllm_model: Path
) -> None:
    first = new_ids("second turn", 700)
    api = client(always.url).completions.with_raw_response
    raw = api.create(model="m", prompt=first, max_tokens=8, temperature=0)
    worker = raw.headers["x-kvgate-worker"]
    assert split_of(always, raw.headers["x-kvgate-decision"])["prefill_worker"]
    with started(vllm_pd, vllm_model, "--disaggregation", "auto") as auto:
        wait_until(lambda: auto.streams() == ["exact"] * FLEET_SIZE, 60)
        second = client(auto.url).completions.with_raw_response.create(
            model="m", prompt=[*first, *new_ids("more", 40)], max_tokens=8, temperature=0
        )
        split = split_of(auto, second.headers["x-kvgate-decision"])
    usage = second.parse().usage
    assert usage and usage.prompt_tokens_details
    assert (second.headers["x-kvgate-worker"], split["prefill_worker"]) == (worker, None)
    assert usage.prompt_tokens_details.cached_tokens == int(second.headers["x-kvgate-overlap-tokens"]) == 672


def test_killed_prefill_worker_loses_no_request(vllm_pd: PdFleet, vllm_model: Path) -> None:
    numbers = range(1000, 1024)
    with started(vllm_pd, vllm_model, "--disaggregation", "always") as gateway:
        wait_until(lambda: gateway.streams() == ["exact"] * FLEET_SIZE, 60)
        with ThreadPoolExecutor(6) as threads:
            running = [threads.submit(Answer, gateway.url, number) for number in numbers]
            wait_until(lambda: plans(gateway).get("prefill_decode", 0) >= 8, TIMEOUT_S)
            vllm_pd.prefill.kill()
            answers = [future.result() for future in running]
        assert "kvgate_disaggregation_failures_total" in gateway.metrics()
        assert gateway.in_flight() == 0
        for number, answer in zip(numbers, answers, strict=True):
            url = vllm_pd.recomputing.url
            alone = Answer(url, number)
            assert answer.text == alone.text or is_near_tie(url, number, answer.text), number
        vllm_pd.prefill.restart().wait_ready()
        wait_until(lambda: len(_up(gateway, vllm_pd.prefill)) == 1, 60)
        before = plans(gateway).get("prefill_decode", 0)
        Answer(gateway.url, 2000)
        assert plans(gateway)["prefill_decode"] > before


def _up(gateway: GatewayProcess, worker: VllmWorker) -> list[Any]:
    endpoints = gateway.admin("/admin/workers")["endpoints"]
    workers = [
        view for endpoint in endpoints if endpoint["url"] == worker.url for view in endpoint["workers"]
    ]
    return [json.dumps(view) for view in workers if view["is_up"]]
