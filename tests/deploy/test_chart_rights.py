"""The chart's Roles before an API server that goes by them: enough for the gateway, and none too many."""

import pytest
import yaml

from gateway.discovery.kubernetes.pool_objects import WatchedPoolObjects
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.discovery.kubernetes.watched_sources import KubernetesSource
from gateway.runtime.tasks import Tasks
from tests.support.chart import GOLDEN, objects, pod_of
from tests.support.kube_api import (
    PODS,
    POOLS,
    SLICES,
    Object,
    endpoint,
    endpoint_slice,
    pod,
    pool,
    served_api,
)
from tests.support.patience import until
from tests.support.worlds.kube_sources import SourcesWorld, sources_world

CASES = [
    ("selector", "k8s://llm/pods?app=vllm&port=8000"),
    ("pool", "k8s://llm/inferencepool/vllm"),
    ("epp", "k8s://llm/inferencepool/kvgate"),
    ("everything", "k8s://llm/service/more"),
]


def rules_of(render: str) -> list[Object]:
    (role,) = objects(GOLDEN / f"{render}.yaml", "Role")
    return list(role["rules"])


async def followed(kube: SourcesWorld, url: str) -> KubernetesSource:
    name = url.rpartition("/")[2]
    kube.api.put(PODS, pod("a", "10.0.0.1"))
    kube.api.put(POOLS, pool(8000, name=name))
    found = endpoint_slice("s", endpoint("10.0.0.1"))
    found["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    kube.api.put(SLICES, found)
    kube.sources.add(url)
    return kube.sources.names[url]


@pytest.mark.parametrize(("render", "url"), CASES)
async def test_a_role_is_enough(render: str, url: str) -> None:
    assert url in pod_of(GOLDEN / f"{render}.yaml")["containers"][0]["args"]
    async with sources_world() as kube:
        kube.api.rules = rules_of(render)
        source = await followed(kube, url)
        num_watches = 2 if "inferencepool" in url else 1
        await until(lambda: source.has_listed.is_set() and kube.api.num_watches == num_watches)
        assert (list(source.members), kube.api.refused) == (["http://10.0.0.1:8000"], [])


@pytest.mark.parametrize(("render", "url"), [case for case in CASES if case[0] != "everything"])
async def test_no_rule_of_a_role_is_too_many(render: str, url: str) -> None:
    for number in range(len(rules_of(render))):
        async with sources_world() as kube:
            kube.api.rules = [rule for at, rule in enumerate(rules_of(render)) if at != number]
            source = await followed(kube, url)
            await until(lambda kube=kube: 403 in kube.api.refused)
            assert not source.members


async def test_a_role_is_enough_for_the_objects_of_a_pool_where_they_are_asked_for() -> None:
    tasks = Tasks()
    for render, is_enough in (("objectives", True), ("pool", False)):
        async with served_api(rules=rules_of(render)) as (api, client):
            watched = WatchedPoolObjects("llm", "vllm", client, lambda: None, WatchTimes())
            watched.start(tasks.start)
            if is_enough:
                await until(lambda api=api: api.num_watches == 2)
            else:
                await until(lambda watched=watched: "403" in (watched.last_error or ""))
            assert (api.refused == []) == is_enough
            await tasks.stop()
            watched.stop()


def test_another_pool_is_out_of_reach() -> None:
    names = [rule["resourceNames"] for rule in rules_of("pool") if "inferencepools" in rule["resources"]]
    assert names == [["vllm"]]
    assert not [
        each for each in yaml.safe_load_all((GOLDEN / "urls.yaml").read_text()) if each["kind"] == "Role"
    ]
