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
from tests.vllm.pd import TIMEOUT_S, PdAnswer, PdFleet, is_near_tie, plans
from tests.vllm.sdk import client

NUM_PROMPTS = 50 if os.environ.get("FULL") else 20
"""A multiple of four, the kinds of request that `Answer` sends; each costs two seconds here."""
FLEET_SIZE = 3


def started(fleet: PdFleet, model: Path, *flags: str) -> GatewayProcess:
    decodes = [flag for worker in fleet.decodes for flag in ("--decode", worker.url)]
    workers = "--prefill", fleet.prefill.url, *decodes
    return GatewayProcess(*workers, "--tokenizer", str(model), "--expose-headers", *flags)


@pytest.fixture(scope="module")
def always(vllm_pd: PdFleet, vllm_model: Path) -> Iterator[GatewayProcess]:
    with started(vllm_pd, vllm_model, "--disaggregation", "always") as process:
        wait_until(lambda: process.streams() == ["exact"] * FLEET_SIZE, 60)
        yield process


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
        answers = list(threads.map(lambda number: PdAnswer(always.url, number), range(NUM_PROMPTS)))
    assert plans(always)["prefill_decode"] - before >= NUM_PROMPTS  # more where a pull stalled and failed
    for number, answer in enumerate(answers):
        alone = PdAnswer(vllm_pd.prefill.url, number)
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
            running = [threads.submit(PdAnswer, gateway.url, number) for number in numbers]
            wait_until(lambda: plans(gateway).get("prefill_decode", 0) >= 8, TIMEOUT_S)
            vllm_pd.prefill.kill()
            answers = [future.result() for future in running]
        assert "kvgate_disaggregation_failures_total" in gateway.metrics()
        assert gateway.in_flight() == 0
        for number, answer in zip(numbers, answers, strict=True):
            url = vllm_pd.recomputing.url
            alone = PdAnswer(url, number)
            assert answer.text == alone.text or is_near_tie(url, number, answer.text), number
        vllm_pd.prefill.restart().wait_ready()
        wait_until(lambda: len(_up(gateway, vllm_pd.prefill)) == 1, 60)
        before = plans(gateway).get("prefill_decode", 0)
        PdAnswer(gateway.url, 2000)
        assert plans(gateway)["prefill_decode"] > before


def _up(gateway: GatewayProcess, worker: VllmWorker) -> list[Any]:
    endpoints = gateway.admin("/admin/workers")["endpoints"]
    workers = [
        view for endpoint in endpoints if endpoint["url"] == worker.url for view in endpoint["workers"]
    ]
    return [json.dumps(view) for view in workers if view["is_up"]]
