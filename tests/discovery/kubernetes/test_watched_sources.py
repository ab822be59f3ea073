"""Kubernetes sources before the tests' API server: from objects to members of the roster."""

import asyncio

import pytest

from gateway.core.errors import ConfigError
from gateway.core.worker import Role
from gateway.discovery.kubernetes import reflector
from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import Coalesced, KubernetesSources
from gateway.runtime.tasks import Tasks
from tests.support.kube_api import PODS, POOLS, SLICES, endpoint, endpoint_slice, pod, pool
from tests.support.patience import until
from tests.support.worlds.kube_membership import MembershipWorld
from tests.support.worlds.kube_sources import BY_LABEL, sources_world

SERVICE = "k8s://llm/service/vllm"
POOL = "k8s://llm/inferencepool/vllm"


async def test_each_kind_of_source_has_its_members() -> None:
    async with sources_world() as kube:
        kube.api.put(PODS, pod("a", "10.0.0.1"))
        kube.api.put(SLICES, endpoint_slice("s", endpoint("10.0.0.2"), endpoint("10.0.0.3", uid="u2")))
        kube.api.put(POOLS, pool(1, 2))
        for url in (BY_LABEL, SERVICE, POOL):
            assert kube.sources.add(url, Role.DECODE) and not kube.sources.add(url)
        await kube.sources.have_listed()
        assert kube.urls(BY_LABEL) == ["http://10.0.0.1:8000"]
        assert kube.urls(SERVICE) == ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
        assert kube.urls(POOL) == ["http://10.0.0.1:1", "http://10.0.0.1:2"]
        assert kube.sources.is_member("http://10.0.0.1:1") and not kube.sources.is_member("http://x")
        assert kube.members.world.roster.declared.roles["http://10.0.0.1:1"] is Role.DECODE
        assert {source: age >= 0.0 for source, age in kube.sources.ages()} == dict.fromkeys(
            (BY_LABEL, SERVICE, POOL), True
        )
        assert ("https" in repr(kube.sources), BY_LABEL in repr(kube.sources)) == (False, True)
        assert kube.sources.drop(POOL) and not kube.sources.drop(POOL)
        assert kube.members.urls == [*kube.urls(BY_LABEL), *kube.urls(SERVICE)]
        await until(lambda: kube.api.num_watches == 2)


async def test_nothing_is_known_before_the_first_list() -> None:
    async with sources_world() as kube:
        kube.api.status = 503
        kube.sources.add(SERVICE)
        await until(lambda: len(kube.api.refused) >= 1)
        source = kube.sources.names[SERVICE]
        await until(lambda: source.last_error is not None)
        assert (source.has_listed.is_set(), list(kube.sources.ages())) == (False, [])
        kube.api.status = 0
        await kube.sources.have_listed()
        assert kube.urls(SERVICE) == []


async def test_a_slice_that_cannot_be_used_is_named() -> None:
    async with sources_world() as kube:
        kube.api.put(SLICES, endpoint_slice("s", endpoint("a.example"), kind="FQDN"))
        kube.sources.add(SERVICE)
        await kube.sources.have_listed()
        assert "addresses of type FQDN" in (kube.error(SERVICE) or "")


async def test_a_pool_that_changes_its_pods_keeps_the_others_until_they_are_listed() -> None:
    async with sources_world() as kube:
        kube.api.put(PODS, pod("a", "10.0.0.1"))
        kube.api.put(PODS, pod("b", "10.0.0.2", labels={"app": "other"}))
        kube.api.put(POOLS, pool(1))
        kube.sources.add(POOL)
        await until(lambda: POOL in kube.sources.names and kube.urls(POOL) == ["http://10.0.0.1:1"])
        await until(lambda: kube.api.num_watches == 2)
        kube.api.put(POOLS, pool())  # not allowed by its definition: nothing changes
        await until(lambda: "has no target ports" in (kube.error(POOL) or ""))
        assert kube.urls(POOL) == ["http://10.0.0.1:1"]
        kube.api.put(POOLS, pool(1, labels={"app": "other"}))
        await until(lambda: "http://10.0.0.2:1" in kube.urls(POOL))
        assert kube.members.why("http://10.0.0.1:1") == "its pod is no longer listed"
        source = kube.sources.names[POOL]
        assert (source.num_failures, source.relists) == (0, {})


async def test_a_definition_that_is_deleted_and_made_again_takes_the_pool_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_PAUSE_S", 0.05)
    async with sources_world() as kube:
        kube.api.put(PODS, pod("a", "10.0.0.1"))
        kube.api.put(POOLS, pool(1))
        kube.sources.add(POOL)
        await until(lambda: kube.urls(POOL) == ["http://10.0.0.1:1"] and kube.api.num_watches == 2)
        kube.api.remove(POOLS, "vllm")
        kube.api.absent.add(POOLS)
        kube.api.compact(as_event=False)  # ends the watches: 404 from here on
        await until(lambda: (kube.error(POOL) or "").startswith("404"))
        assert kube.members.why("http://10.0.0.1:1") == "its pod is no longer listed"
        kube.api.absent.clear()
        kube.api.put(POOLS, pool(2, uid="another"))
        await until(lambda: "http://10.0.0.1:2" in kube.urls(POOL) and kube.error(POOL) is None)


async def test_outside_a_cluster_there_is_a_reason() -> None:
    def nowhere() -> ClusterAccess:
        raise ConfigError("no API server")

    sources = KubernetesSources(
        MembershipWorld().membership, Tasks().start, cluster=nowhere, times=WatchTimes()
    )
    assert sources.refusal() == "no API server"
    with pytest.raises(ConfigError, match="no API server"):
        sources.add(SERVICE)
    assert sources.names == {}
    await sources.close()


async def test_changes_that_follow_closely_are_applied_together() -> None:
    applied: list[int] = []
    changes = Coalesced(lambda: applied.append(1), min_gap_s=0.02)
    for _ in range(5):
        changes.poke()
    assert len(applied) == 1
    await until(lambda: len(applied) == 2)
    changes.poke()
    changes.stop()
    changes.poke()
    await until(lambda: len(applied) == 3)


async def test_a_long_application_is_followed_by_a_longer_rest() -> None:
    ticks, applied = iter([0.0, 0.002, 1.0, 1.0]), []
    changes = Coalesced(lambda: applied.append(asyncio.get_running_loop().time()), 0.0, lambda: next(ticks))
    changes.poke()
    changes.poke()
    await until(lambda: len(applied) == 2)
    assert applied[1] - applied[0] >= 0.15
