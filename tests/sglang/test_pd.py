"""Prefill and decode on separate SGLang servers, joined by NIXL: answers of one worker, clean failures."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_process import wait_until
from tests.support.engine_talk import TalkAnswer, complete, gateway_of, ids, is_exact, post, text
from tests.support.gateway_process import GatewayProcess

PAGE = 16
NUM_PROMPTS = 12
ANSWER_TIMEOUT_S = 60.0
"""Longer than any request here, also one with a worker that died: such a one is answered or rejected."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A prefill and a decode worker, and the texts that one worker with both roles answered before."""

    prefill: SglangWorker
    decode: SglangWorker
    alone: list[str]


@pytest.fixture(scope="module")
def fleet(start_module_sglang: Start) -> Fleet:
    both = start_module_sglang(page_size=PAGE).wait_ready()
    alone = [TalkAnswer(200, json.loads(both.post(path, body))).text for path, body in BODIES]
    both.stop()  # its cores
    prefill, decode = (start_module_sglang(page_size=PAGE, role=role) for role in ("prefill", "decode"))
    return Fleet(prefill.wait_ready(), decode.wait_ready(), alone)


@pytest.fixture(scope="module")
def gateway(fleet: Fleet) -> Iterator[GatewayProcess]:
    with gateway_of(fleet.prefill, fleet.decode) as process:
        yield process


def body_of(number: int) -> tuple[str, dict[str, Any]]:
    """A chat or completion of some 100 to 300 tokens, which needs 8 more."""
    words, fields = text(f"pd {number}", 40 + 10 * number), {"model": "m", "temperature": 0, "max_tokens": 8}
    if number % 2:
        return "/v1/completions", fields | {"prompt": words}
    return "/v1/chat/completions", fields | {"messages": [{"role": "user", "content": words}]}


BODIES = [body_of(number) for number in range(NUM_PROMPTS)]


def plans(gateway: GatewayProcess) -> list[str]:
    return [line for line in gateway.metrics().splitlines() if "disaggregation_plans_total{" in line]


def test_roles_are_known_by_the_engine_s_own_answer(gateway: GatewayProcess, fleet: Fleet) -> None:
    roles = {e["url"]: e["role"] for e in gateway.admin("/admin/workers")["endpoints"]}
    assert roles == {fleet.prefill.url: "prefill", fleet.decode.url: "decode"}
    for worker in (fleet.prefill, fleet.decode):
        assert json.loads(worker.get("/server_info"))["disaggregation_mode"] == roles[worker.url]
        with pytest.raises(HTTPError) as refused:
            worker.complete("alone")
        with refused.value:
            assert refused.value.code == 400


def test_answers_equal_those_of_one_worker(gateway: GatewayProcess, fleet: Fleet) -> None:
    answers = [post(gateway, path, body) for path, body in BODIES]
    assert [answer.text for answer in answers] == fleet.alone
    assert {answer.worker for answer in answers} == {f"127.0.0.1:{fleet.decode.port}"}
    with ThreadPoolExecutor(4) as threads:
        again = list(threads.map(lambda each: post(gateway, *each), BODIES))
    assert [answer.text for answer in again] == fleet.alone
    assert any('plan="prefill_decode"' in line for line in plans(gateway)), plans(gateway)
    assert gateway.in_flight() == 0


def test_transferred_tokens_are_no_wrong_predictions(gateway: GatewayProcess) -> None:
    prompt = ids("transferred", 200)
    answers = [complete(gateway, prompt + ids(f"more {i}", 20)) for i in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    wrong = [line for line in gateway.metrics().splitlines() if line.startswith("kvgate_mispredictions")]
    assert wrong and all(line.endswith(" 0.0") for line in wrong), wrong


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_killed_worker_gives_an_answer_or_a_clean_error(
    gateway: GatewayProcess, fleet: Fleet, role: str
) -> None:
    """Requests are under way when the worker dies, and more come while it is gone. The decode worker
    comes back, for the test of the prefill worker, which stays down."""
    worker: SglangWorker = getattr(fleet, role)
    body = {"model": "m", "prompt": ids(role, 300), "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(post, gateway, "/v1/completions", body) for _ in range(4)]
        wait_until(lambda: gateway.in_flight() >= 4, 20)
        worker.kill()
        late = [threads.submit(post, gateway, *BODIES[i]) for i in range(2)]
        answers = [future.result(timeout=ANSWER_TIMEOUT_S) for future in (*running, *late)]
    for answer in answers:
        assert answer.status == 200 or answer.body["error"]["code"], answer
    assert answers[-1].status in (502, 503), answers[-1]
    assert gateway.in_flight() == 0
    if role == "decode":
        worker.start().wait_ready()
        is_exact(gateway, 2)
        assert post(gateway, *BODIES[0]).text == fleet.alone[0]
