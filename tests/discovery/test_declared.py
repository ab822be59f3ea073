from dataclasses import replace
from typing import Any

import pytest

from gateway.config import load
from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.errors import ConfigError
from gateway.core.worker import Role, Transfer
from gateway.discovery.declared import DeclaredSettings, WrongRole, declared_settings
from gateway.discovery.probed import Facts

P, D, W = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"
KNOWN, DEFAULTS = ("nixl", "mooncake", "bootstrap"), {"vllm": "nixl", "sglang": "bootstrap"}


def settings(**options: Any) -> DeclaredSettings:
    return declared_settings(load(options, environ={}), KNOWN, DEFAULTS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"worker": [W, D, W + "/"]}, f"worker: {W} is given twice"),
        ({"worker": ["http://w", "http://w:80"]}, "worker: http://w is given twice"),
        ({"worker": ["https://w:443/base", "https://W/base"]}, "worker: https://w:443/base is given twice"),
        ({"prefill": [P, P]}, f"prefill: {P} is given twice"),
        ({"worker": [W], "prefill": [W]}, f"prefill: {W} is a --worker worker too"),
        ({"worker": [W], "decode": [W]}, f"decode: {W} is a --worker worker too"),
        ({"prefill": [W], "decode": [W]}, f"decode: {W} is a --prefill worker too"),
    ],
)
def test_a_worker_is_given_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(**given)


def facts(url: str, **more: Any) -> Facts:
    ranks = {0: EngineMetrics(block_size=32)}
    return Facts(url, more.pop("engine", "vllm"), (ModelInfo("m"),), ranks, **more)


def test_a_worker_has_the_declared_role() -> None:
    declared = settings(worker=[W], prefill=[P + "/"], decode=[D])
    roles = [(w.role, w.transfer) for url in (P, D, W) for w in declared.workers_of(facts(url))]
    assert roles == [(Role.PREFILL, Transfer("nixl")), (Role.DECODE, Transfer("nixl")), (Role.BOTH, None)]


def test_reported_facts_override_declared_ones_except_the_connector() -> None:
    reported = Transfer("nixl", cache_dtype="fp8")
    (worker,) = settings(worker=[W]).workers_of(facts(W, role="decode", transfer=reported))
    assert (worker.role, worker.transfer) == (Role.DECODE, reported)
    (worker,) = settings(worker=[W], connector=[f"{W}=mooncake"]).workers_of(facts(W, transfer=reported))
    assert worker.transfer == Transfer("mooncake", cache_dtype="fp8")


def test_a_connector_for_all_workers_applies_to_workers_of_both_roles() -> None:
    (worker,) = settings(worker=[W], connector=["mooncake"]).workers_of(facts(W))
    assert (worker.role, worker.transfer) == (Role.BOTH, Transfer("mooncake"))


@pytest.mark.parametrize(("option", "reported"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_worker_that_reports_another_role_does_not_join(option: str, reported: str) -> None:
    with pytest.raises(WrongRole, match=f"{W} is a {reported} worker, but was declared as --{option}"):
        settings(**{option: [W]}).workers_of(facts(W, role=reported))


def test_a_connector_is_ignored_for_an_engine_without_one() -> None:
    (worker,) = settings(decode=[W]).workers_of(facts(W, engine="openai"))
    assert worker.transfer is None


def test_a_wildcard_transfer_address_becomes_the_address_of_the_worker() -> None:
    (worker,) = settings().workers_of(
        facts(W, engine="sglang", role="prefill", transfer=Transfer("bootstrap", "*:8998"))
    )
    assert worker.transfer and worker.transfer.address == "10.0.0.3:8998"


def test_topology_is_declared_by_worker() -> None:
    (worker,) = settings(worker=[W], topology=[f"{W}=r1/h1"]).workers_of(facts(W))
    assert worker.topology == "r1/h1"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"connector": ["ucx"]}, "connector: unknown connector 'ucx'; known: nixl, mooncake, bootstrap"),
        ({"connector": [f"{W}=ucx"]}, "connector: unknown connector 'ucx'"),
        ({"connector": ["ftp://x=nixl"]}, "connector: worker: "),
        ({"topology": ["r1"]}, "topology: 'r1' names no worker"),
        ({"prefill": [P], "decode": [P]}, f"decode: {P} is a --prefill worker too"),
        ({"prefill": ["x"]}, "worker: "),
    ],
)
def test_a_wrong_declaration_is_rejected(options: dict[str, list[str]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settings(**options)


def test_a_declared_block_size_replaces_the_reported_one() -> None:
    declared = settings(worker=[W], workers={W: {"block_size": 32}})
    (worker,) = declared.workers_of(facts(W))
    assert worker.block_size == 32
    declared.inherit("http://10.0.0.9:8000", W)
    (worker,) = declared.workers_of(facts("http://10.0.0.9:8000"))
    assert worker.block_size == 32
    with pytest.raises(ConfigError, match="block_size"):
        settings(worker=[W], workers={W: {"block_size": -1}})


def test_declared_ports_replace_what_is_reported_and_what_is_the_default() -> None:
    declared = settings(worker=[f"{W}#events_port=7001&replay_port=8001"])
    reported = replace(facts(W), sources=(EventSource(1, "tcp://*:1", "tcp://*:2"),))
    for known in (facts(W), reported):
        assert declared.event_source(known, 1, (5557, 0)) == EventSource(
            1, "tcp://*:7002", "tcp://*:8002", is_reported=False
        )
    other = replace(reported, url="http://10.0.0.9:8000")
    assert declared.event_source(other, 1, (5557, 0)) == EventSource(1, "tcp://*:1", "tcp://*:2")
    declared.inherit(other.url, W)
    assert declared.event_source(other, 0, (5557, 0)) == EventSource(
        0, "tcp://*:7001", "tcp://*:8001", is_reported=False
    )
    replays = settings(worker=[W], workers={W: {"replay_port": 9}})
    assert replays.event_source(facts(W), 0, (5557, 0)) == EventSource(
        0, "tcp://*:5557", "tcp://*:9", is_reported=False
    )
