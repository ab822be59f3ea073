"""Admission limits of a real vLLM: its rejections are saturation to the gateway, and eject no worker."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.support.blackbox.engine_refusals import VLLM_REQUESTS, VLLM_TOKENS
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.engine import VllmWorker
from tests.vllm.pd import post

Pair = tuple[VllmWorker, VllmWorker]
BODY = {"model": "m", "prompt": "a river of stone", "max_tokens": 64, "ignore_eos": True}


@pytest.fixture(scope="module")
def limited(start_module_vllm: Callable[..., VllmWorker]) -> Pair:
    """A worker that takes one request at a time, and one that takes none."""
    one = start_module_vllm(extra_args=("--max-num-queued-reqs", "1"))
    none = start_module_vllm(extra_args=("--max-num-queued-tokens", "0"))
    return one.wait_ready(), none.wait_ready()


@pytest.fixture(scope="module")
def gateway(limited: Pair, vllm_model: Path) -> Iterator[GatewayProcess]:
    workers = [flag for worker in limited for flag in ("--worker", worker.url)]
    with GatewayProcess(*workers, "--tokenizer", str(vllm_model), "--expose-headers") as process:
        wait_until(lambda: [worker["state"] for worker in process.workers()] == ["active"] * 2, 60)
        yield process


def total(gateway: GatewayProcess, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", gateway.metrics(), re.M))


def test_the_engines_words_are_the_known_ones(limited: Pair) -> None:
    one, none = limited
    status, body = post(none, "/v1/completions", BODY)
    assert (status, json.loads(body)) == (503, json.loads(VLLM_TOKENS))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(one, "/v1/completions", BODY), range(4)))
    refused = [json.loads(body) for status, body in answers if status == 503]
    assert refused and refused == [json.loads(VLLM_REQUESTS)] * len(refused)


def test_single_requests_are_answered_though_a_worker_rejects_all(
    gateway: GatewayProcess, limited: Pair
) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=patience(120))
    for number in range(12):
        answer = client.completions.with_raw_response.create(
            model="m", prompt=f"{number}: a river", max_tokens=4
        )
        assert answer.headers["x-kvgate-worker"] == limited[0].url.removeprefix("http://")
    assert total(gateway, "kvgate_worker_rejections_total") >= 1
    assert total(gateway, "kvgate_worker_ejections_total") == 0
    assert total(gateway, "kvgate_worker_failed_requests_total") == 0


def test_a_saturated_fleet_rejects_with_a_time_and_ejects_no_worker(gateway: GatewayProcess) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=patience(120))

    def ask(number: int) -> str:
        try:
            client.completions.create(model="m", prompt=f"{number}: a cloud", max_tokens=48)
        except openai.APIStatusError as error:
            assert (error.status_code, error.response.headers["retry-after"]) == (503, "1")
            return "rejected"
        return "answered"

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(40)))
    assert set(results) == {"answered", "rejected"}
    assert total(gateway, "kvgate_worker_ejections_total") == 0
    assert {worker["state"] for worker in gateway.workers()} == {"active"}
    wait_until(lambda: ask(100) == "answered", 30)  # after the time for which its worker is left out
