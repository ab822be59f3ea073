import random
from dataclasses import replace as moved
from typing import Any

from gateway.core.decision import Candidate, Query
from gateway.core.value import replace
from gateway.policies.base import Policy
from gateway.policies.framework.registry import PolicyRegistry
from gateway.policies.topology import TopologyFilter
from tests.policies.contract import PolicyContract, candidate


def at(name: str, place: str, **more: Any) -> Candidate:
    some = candidate(name)
    return replace(some, worker=moved(some.worker, topology=place), **more)


NEAR, SAME_ZONE, FAR = at("near", "z1/r1"), at("zone", "z1/r2"), at("far", "z2/r1")


def kept(place: str, *some: Candidate) -> list[str]:
    return [each.id for each in TopologyFilter(place).keep(Query("m", 0), some)]


class TestTopology(PolicyContract):
    def make(self) -> Policy:
        return PolicyRegistry(place="zone1/rack1").policy("topology")


def test_the_nearest_workers_are_kept() -> None:
    assert kept("z1/r1", FAR, SAME_ZONE, NEAR) == ["near"]
    assert kept("z1/r9", FAR, SAME_ZONE, NEAR) == ["zone", "near"]
    assert kept("z9", FAR, NEAR) == kept("", FAR, NEAR) == ["far", "near"]


def test_full_workers_are_skipped() -> None:
    waiting, full = replace(NEAR, num_waiting=1), replace(SAME_ZONE, kv_usage=0.99)
    assert kept("z1/r1", waiting, SAME_ZONE, FAR) == ["zone"]
    assert kept("z1/r1", waiting, full, FAR) == ["far"]
    assert kept("z1/r1", waiting, full) == []


def test_as_a_policy_overlap_counts_among_the_near() -> None:
    policy = PolicyRegistry(place="z1").policy("topology")
    far = replace(FAR, overlap_tokens=1000, uncached_tokens=0)
    zone = replace(SAME_ZONE, overlap_tokens=500, uncached_tokens=500)
    choice = policy.choose(Query("m", 1000), [far, NEAR, zone], random.Random(1))
    assert (choice.index, choice.reason) == (
        2,
        "longest cached prefix and lowest predicted TTFT, of 2 workers left by the filters",
    )
