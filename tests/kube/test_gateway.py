"""The gateway before a real API server, with the rights of the chart: pods come and go, and the API fails."""

import asyncio
import contextlib

import pytest

from tests.kube.definitions import definition
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.real_kube import ACCOUNT, BINDING, RealKube, real_kube
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.kube_api import PODS, POOLS, pool
from tests.support.patience import until
from tests.support.real_cluster import RealCluster

pytestmark = pytest.mark.kube

BY_LABEL = "k8s://llm/pods?app=vllm&port=http"
POOL = "k8s://llm/inferencepool/vllm"


def by_label(cluster: RealCluster) -> "contextlib.AbstractAsyncContextManager[RealKube]":
    return real_kube(cluster, BY_LABEL, "selector")


async def test_pods_join_and_drain_at_their_deletion_timestamp(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        assert await kube.status() == 503
        one = await kube.worker("one")
        held: list[Call] = []

        async def hold(call: Call) -> None:
            held.append(call)

        one.script = hold
        client = await kube.bench.client()
        await client.send(post(completion()))
        await until(lambda: bool(held), "a request in flight")
        cluster.delete(PODS, "one")  # a finalizer keeps it, as containers that end would

        async def is_draining() -> bool:
            found = await kube.bench.gateway.endpoint(one)
            return bool(found and found["is_draining"])

        await until(is_draining, "the pod drains")
        assert cluster.done("GET", f"{PODS}/one")["metadata"]["deletionTimestamp"]
        assert await kube.status() == 503  # the worker answers still, and gets nothing new
        await answer_ok(held[0])
        assert (await client.answer()).status == 200
        cluster.remove(PODS, "one")
        await kube.left(one)


async def test_another_pod_at_the_same_address_is_another_engine(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        one = await kube.worker("one")
        kube.pod("two", one)  # both have the node's address
        cluster.remove(PODS, "one")
        await kube.bench.gateway.logged(f"worker {one.url}: address belongs to another pod now")
        await kube.joined(one)
        assert await kube.status() == 200


async def test_a_pod_that_leaves_the_selector_or_is_not_ready_gets_nothing(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        one, two = await kube.worker("one"), await kube.worker("two")
        kube.pod("one", one, labels={"app": "other"})
        await kube.left(one)
        kube.pod("two", two, ready=False)

        async def is_refused() -> bool:
            return await kube.status() == 503

        await until(is_refused, "no request to a pod that is not ready")
        kube.pod("one", one)
        await kube.joined(one)
        assert await kube.status() == 200


async def test_a_pool_and_its_definition_are_deleted_and_made_again(cluster: RealCluster) -> None:
    async with real_kube(cluster, POOL, "pool") as kube:
        one = await kube.started()
        kube.pod("one", one)
        await kube.fails_with("there is no InferencePool vllm")
        cluster.put(POOLS, pool(one.port))
        await kube.joined(one)
        await asyncio.to_thread(cluster.undefine, "inferencepools.inference.networking.k8s.io")
        await kube.left(one)
        await kube.fails_with("404")
        await asyncio.to_thread(cluster.define, definition("InferencePool"))
        cluster.put(POOLS, pool(one.port))
        await kube.joined(one, seconds=90.0)  # it asks each 30 s


async def test_a_crash_of_the_api_server_costs_no_request(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        await kube.worker("one")
        async with kube.load():
            cluster.kill()
            await kube.fails_with("connect")
            await asyncio.to_thread(cluster.start)
            await kube.worker("two")
        assert await kube.relists("absent") == 0


async def test_an_api_server_that_is_away_costs_no_request_even_if_a_worker_dies(
    cluster: RealCluster,
) -> None:
    async with by_label(cluster) as kube:
        one, two = await kube.worker("one"), await kube.worker("two")
        await kube.relay.cut()
        async with kube.load():
            await kube.fails_with("connect")
            await one.die()

            async def is_down() -> bool:
                return not await kube.bench.gateway.is_up(one)

            await until(is_down, "the probe finds the dead worker")
        assert await kube.bench.gateway.is_up(two)
        cluster.remove(PODS, "one")
        await kube.relay.open()
        await kube.left(one)


async def test_rights_that_are_missing_for_a_while_change_nothing(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        await kube.worker("one")
        bound = cluster.done("GET", BINDING)
        cluster.done("DELETE", BINDING)
        await until(lambda: cluster.ask("GET", PODS, user=kube.token_file.read_text()).status == 403)
        await kube.relay.reset()
        await kube.fails_with("403 pods is forbidden")
        assert await kube.status() == 200
        del bound["metadata"]["resourceVersion"]
        cluster.done("POST", BINDING.rpartition("/")[0], bound)
        await kube.worker("two")
        assert await kube.relists("expired") == 0


async def test_a_token_that_is_not_valid_any_more_is_read_again(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        await kube.worker("one")
        cluster.done("DELETE", ACCOUNT)
        cluster.done("POST", ACCOUNT.rpartition("/")[0], {"metadata": {"name": "kvgate"}})
        old = kube.token_file.read_text()
        await until(lambda: cluster.ask("GET", PODS, user=old).status == 401, "the old token ended")
        await kube.relay.reset()
        await kube.fails_with("401")
        assert await kube.status() == 200
        kube.token_file.write_text(cluster.token("llm", "kvgate"))
        await kube.worker("two")


async def test_a_deletion_is_found_though_its_event_is_compacted(cluster: RealCluster) -> None:
    async with by_label(cluster) as kube:
        one, two = await kube.worker("one"), await kube.worker("two")
        await kube.relay.cut()
        cluster.remove(PODS, "one")
        cluster.compact()
        cluster.kill()  # with what it has in memory
        await asyncio.to_thread(cluster.start)
        await kube.relay.open()
        await kube.left(one)
        assert await kube.bench.gateway.is_up(two)
        assert await kube.relists("expired") >= 1
