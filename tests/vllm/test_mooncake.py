"""Prefill and decode on separate vLLM engines, joined by Mooncake over loopback.

A decode worker counts all that it fetched as cached, unless the request has prefill's own count: the gateway
sends it, and takes neither for a hit of the decode worker.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from loadtest.ports import free_port
from tests.support.engine_process import wait_until
from tests.support.engine_talk import complete, ids
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.engine import ENGINE, VllmWorker
from tests.vllm.pd import PdAnswer, PdFleet, completion, is_near_tie, plans, post, prefill_leg

pytestmark = pytest.mark.engines

STUB = Path(__file__).parent / "mooncake_stub"
DEBIAN = ENGINE.parents[1] / "debian"
"""Libraries of the transfer engine, as `install_mooncake.sh` unpacked them."""
LIBRARIES = ":".join(str(path) for path in sorted(DEBIAN.glob("**/lib/*-linux-gnu")))
NUM_BLOCKS = 600
NUM_PROMPTS = 12
ENVIRONMENT = {"PYTHONPATH": str(STUB), "LD_LIBRARY_PATH": LIBRARIES, "MC_TCP_BIND_ADDRESS": "127.0.0.1"}


@pytest.fixture(scope="module")
def bootstrap_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def fleet(start_module_vllm: Callable[..., VllmWorker], bootstrap_port: int) -> PdFleet:
    """A prefill and a decode worker; the second decode worker of a `PdFleet` is the same."""

    def start(role: str, port: int) -> VllmWorker:
        transfer: dict[str, Any] = {"kv_connector": "MooncakeConnector", "kv_role": role}
        transfer["kv_connector_extra_config"] = {"mooncake_protocol": "tcp"}
        return start_module_vllm(
            num_gpu_blocks_override=NUM_BLOCKS,
            extra_args=("--kv-transfer-config", json.dumps(transfer)),
            extra_env=[*ENVIRONMENT.items(), ("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(port))],
        )

    prefill, decode = start("kv_producer", bootstrap_port), start("kv_consumer", free_port())
    return PdFleet(prefill.wait_ready(), decode.wait_ready(), decode)


@pytest.fixture(scope="module")
def gateway(fleet: PdFleet, vllm_model: Path) -> Iterator[GatewayProcess]:
    workers = "--prefill", fleet.prefill.url, "--decode", fleet.failing.url
    flags = "--tokenizer", str(vllm_model), "--expose-headers", "--disaggregation", "always"
    with GatewayProcess(*workers, *flags) as process:
        wait_until(lambda: process.streams() == ["exact"] * 2, 60)
        yield process


def test_the_engine_counts_fetched_tokens_as_cached(fleet: PdFleet, bootstrap_port: int) -> None:
    """610 of 610, of which prefill had computed all."""
    opener = build_opener(ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{bootstrap_port}/query", timeout=patience(10)) as answer:
        engine_id = json.load(answer)["0"]["engine_id"]
    body = completion(ids("fetched", 610))
    ours = {"transfer_id": "xfer-of-a-test"}
    there = {"do_remote_decode": True, "do_remote_prefill": False} | ours
    status, data = post(fleet.prefill, "/v1/completions", prefill_leg(body) | {"kv_transfer_params": there})
    assert status == 200, data
    here = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": engine_id} | ours
    here["remote_bootstrap_addr"] = f"http://127.0.0.1:{bootstrap_port}"
    status, data = post(fleet.failing, "/v1/completions", body | {"kv_transfer_params": here})
    assert status == 200, data
    usage = json.loads(data)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] == 610


def test_answers_equal_those_of_one_worker(gateway: GatewayProcess, fleet: PdFleet) -> None:
    for number in range(NUM_PROMPTS):
        answer, alone = PdAnswer(gateway.url, 5000 + number), PdAnswer(fleet.prefill.url, 5000 + number)
        is_equal = answer.text == alone.text
        assert is_equal or is_near_tie(fleet.prefill.url, 5000 + number, answer.text), number
    assert plans(gateway) == {"prefill_decode": NUM_PROMPTS}
    assert "kvgate_disaggregation_prompt_mismatches_total 0.0" in gateway.metrics()


def test_transferred_tokens_are_no_hits_and_no_wrong_predictions(gateway: GatewayProcess) -> None:
    """The client sees what prefill had cached."""
    prompt = ids("transferred", 610)
    answers = [complete(gateway, prompt), complete(gateway, prompt + ids("more", 30))]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.cached for answer in answers] == [0, 608]
    shown = gateway.metrics().splitlines()
    wrong = [line for line in shown if line.startswith("kvgate_mispredictions_total{")]
    hits = [line for line in shown if line.startswith("kvgate_worker_reported_cached_tokens_total{")]
    assert wrong and hits and all(line.endswith(" 0.0") for line in (*wrong, *hits)), (wrong, hits)
