from typing import Any

import pytest

from gateway.config import load
from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.core.errors import ConfigError
from gateway.core.worker import Role, Transfer
from gateway.discovery.declared import Said, WrongRole, said_of
from gateway.discovery.probed import Facts

P, D, W = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"
KNOWN, DEFAULTS = ("nixl", "mooncake", "bootstrap"), {"vllm": "nixl", "sglang": "bootstrap"}


def said(**options: Any) -> Said:
    return said_of(load(options, environ={}), KNOWN, DEFAULTS)


def facts(url: str, **more: Any) -> Facts:
    ranks = {0: EngineMetrics(block_size=32)}
    return Facts(url, more.pop("engine", "vllm"), (ModelInfo("m"),), ranks, **more)


def test_a_worker_is_what_it_is_given_as() -> None:
    what = said(worker=[W], prefill=[P + "/"], decode=[D])
    roles = [(w.role, w.transfer) for url in (P, D, W) for w in what.workers_of(facts(url))]
    assert roles == [(Role.PREFILL, Transfer("nixl")), (Role.DECODE, Transfer("nixl")), (Role.BOTH, None)]


def test_what_it_tells_itself_goes_before_that_but_for_the_connector_that_was_said() -> None:
    told = Transfer("nixl", cache_dtype="fp8")
    (worker,) = said(worker=[W]).workers_of(facts(W, role="decode", transfer=told))
    assert (worker.role, worker.transfer) == (Role.DECODE, told)
    (worker,) = said(worker=[W], connector=[f"{W}=mooncake"]).workers_of(facts(W, transfer=told))
    assert worker.transfer == Transfer("mooncake", cache_dtype="fp8")


def test_a_connector_for_all_makes_pairs_of_those_that_do_both() -> None:
    (worker,) = said(worker=[W], connector=["mooncake"]).workers_of(facts(W))
    assert (worker.role, worker.transfer) == (Role.BOTH, Transfer("mooncake"))


@pytest.mark.parametrize(("option", "told"), [("prefill", "decode"), ("decode", "prefill")])
def test_one_that_says_that_it_is_another_does_not_join(option: str, told: str) -> None:
    with pytest.raises(WrongRole, match=f"{W} is a {told} worker, but was declared as --{option}"):
        said(**{option: [W]}).workers_of(facts(W, role=told))


def test_an_engine_without_a_connector_has_none() -> None:
    (worker,) = said(decode=[W]).workers_of(facts(W, engine="openai"))
    assert worker.transfer is None


def test_addresses_are_those_by_which_we_reach_it() -> None:
    (worker,) = said().workers_of(
        facts(W, engine="sglang", role="prefill", transfer=Transfer("bootstrap", "*:8998"))
    )
    assert worker.transfer and worker.transfer.address == "10.0.0.3:8998"


def test_places_are_said_of_workers() -> None:
    (worker,) = said(worker=[W], topology=[f"{W}=r1/h1"]).workers_of(facts(W))
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
def test_what_cannot_be_meant_is_refused(options: dict[str, list[str]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        said(**options)
