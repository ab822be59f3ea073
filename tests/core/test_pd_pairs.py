from dataclasses import replace

import pytest

from gateway.core.pd_pairs import PairKind, kind_of, misfit, misfits, nearness, partners_of
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId

PREFILL = Worker(
    WorkerId("p:1"),
    "http://p:1",
    (ServedModel("m", "root"),),
    block_size=32,
    version="0.32.0",
    role=Role.PREFILL,
    transfer=Transfer("nixl", cache_dtype="auto", tensor_parallel=2),
)
DECODE = replace(PREFILL, id=WorkerId("d:1"), url="http://d:1", role=Role.DECODE)


def kind(worker: Worker, **changes: object) -> PairKind:
    found = kind_of(worker)
    assert found is not None
    return found._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"version": None}, ""),
        ({"block_size": None, "cache_dtype": None, "tensor_parallel": None}, ""),
        ({"tensor_parallel": 8}, ""),
        ({"tensor_parallel": 3}, "tensor-parallel sizes do not divide: 2, 3"),
        ({"model": "other"}, "models differ: root, other"),
        ({"engine": "sglang"}, "engines differ: vllm, sglang"),
        ({"version": "0.31.0"}, "engine versions differ: 0.32.0, 0.31.0"),
        ({"connector": "mooncake"}, "connectors differ: nixl, mooncake"),
        ({"block_size": 16}, "block sizes differ: 32, 16"),
        ({"cache_dtype": "fp8"}, "cache types differ: auto, fp8"),
    ],
)
def test_facts_that_both_workers_report_must_agree(changes: dict[str, object], why: str) -> None:
    assert misfit(kind(PREFILL), kind(DECODE, **changes)) == why


def test_a_worker_without_a_transfer_has_no_kind() -> None:
    assert kind_of(replace(PREFILL, transfer=None)) is None
    assert kind_of(replace(PREFILL, served=())) is None


class Has:
    def __init__(self, kind: PairKind | None) -> None:
        self.kind = kind


def test_prefill_workers_of_one_kind_have_the_same_partners() -> None:
    first, second = kind(PREFILL), kind(PREFILL, version="0.31.0")
    decodes = [Has(first), Has(None), Has(second), Has(first), Has(kind(PREFILL, model="x"))]
    partners = partners_of(decodes, [Has(first), Has(second), Has(first), Has(None)])
    assert [list(each) for each in partners] == [[0, 2], [], [1], [0, 2], []]
    assert partners[0] is partners[3]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("", "", 0),
        ("r1/h1", "", 0),
        ("r1/h1", "r1/h2", 1),
        ("r1/h1", "r1/h1", 2),
        ("r1", "r1/h1", 1),
        ("r2/h1", "r1/h1", 0),
    ],
)
def test_nearness_is_the_common_prefix_of_topology_labels(first: str, second: str, shared: int) -> None:
    assert nearness(first, second) == nearness(second, first) == shared


def test_misfits_are_pairs_of_one_model_that_differ() -> None:
    old = replace(DECODE, id=WorkerId("d:2"), version="0.31.0")
    other = replace(old, id=WorkerId("d:3"), served=(ServedModel("x", "x"),))
    both = replace(old, id=WorkerId("b:1"), role=Role.BOTH)
    found = list(misfits([PREFILL, DECODE, old, other, both, replace(old, transfer=None)]))
    assert found == [("p:1", "d:2", "engine versions differ: 0.32.0, 0.31.0")]
