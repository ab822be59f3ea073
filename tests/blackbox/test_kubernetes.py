"""Workers in Kubernetes: a gateway process before an API server with faults, and workers that come and go."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.kube_cluster import BY_LABEL, Cluster, cluster
from tests.support.blackbox.scripted_worker import Call, answer_ok
from tests.support.gateway_process import GatewayProcess
from tests.support.kube_api import PODS, POOLS, SLICES, KubeApi, endpoint, endpoint_slice, pod, pool
from tests.support.patience import until

SERVICE = "k8s://llm/service/vllm"
POOL = "k8s://llm/inferencepool/vllm"


async def test_pods_join_and_leave() -> None:
    async with cluster(BY_LABEL) as kube:
        assert await kube.status() == 503
        one, two = await kube.worker("one"), await kube.worker("two")
        assert await kube.status() == 200
        kube.api.remove(PODS, "one")
        await kube.left(one)
        assert [await kube.status() for _ in range(4)] == [200] * 4
        assert (len(one.calls) <= 1, len(two.calls) >= 4) == (True, True)
        kube.api.remove(PODS, "two")
        await kube.left(two)
        assert await kube.status() == 503  # an empty list that is true


async def test_a_gateway_is_ready_once_its_workers_were_listed() -> None:
    async with cluster(BY_LABEL, status=403) as kube:
        one = await kube.started()
        kube.api.put(PODS, pod("one", port=one.port))
        await until(lambda: len(kube.api.refused) >= 2, "refused twice")
        assert (await kube.bench.ask(request("GET", "/ready"))).status == 503
        kube.api.status = 0
        await kube.joined(one)
        assert (await kube.bench.ask(request("GET", "/ready"))).status == 200


async def test_a_pod_drains_when_it_is_deleted_and_ends_what_it_has() -> None:
    async with cluster(BY_LABEL) as kube:
        one = await kube.worker("one")
        held: list[Call] = []

        async def hold(call: Call) -> None:
            held.append(call)

        one.script = hold
        client = await kube.bench.client()
        await client.send(post(completion()))
        await until(lambda: bool(held), "a request in flight")
        kube.api.put(PODS, pod("one", port=one.port, deleted=True))

        async def is_draining() -> bool:
            found = await kube.bench.gateway.endpoint(one)
            return bool(found and found["is_draining"])

        await until(is_draining, "the pod drains")
        assert await kube.status() == 503  # the worker answers still, and gets nothing new
        await answer_ok(held[0])
        assert (await client.answer()).status == 200
        await kube.left(one)


async def test_another_pod_at_the_same_address_is_another_engine() -> None:
    async with cluster(BY_LABEL) as kube:
        one = await kube.worker("one", uid="first")
        kube.api.put(PODS, pod("one", port=one.port, uid="second"))
        await kube.bench.gateway.logged(f"worker {one.url}: address belongs to another pod now")
        await kube.joined(one)
        assert await kube.status() == 200


async def test_a_pod_that_is_not_ready_gets_nothing_and_comes_back() -> None:
    async with cluster(BY_LABEL) as kube:
        one = await kube.worker("one")
        kube.api.put(PODS, pod("one", port=one.port, ready=False))

        async def is_refused() -> bool:
            return await kube.status() == 503

        await until(is_refused, "no request to a pod that is not ready")
        assert await kube.bench.gateway.is_up(one)
        kube.api.put(PODS, pod("one", port=one.port))

        async def is_answered() -> bool:
            return await kube.status() == 200

        await until(is_answered, "requests again")


@pytest.mark.parametrize("as_event", [True, False], ids=["event", "next request"])
async def test_versions_that_are_too_old_lead_to_a_list_that_finds_deletions(as_event: bool) -> None:
    async with cluster(BY_LABEL) as kube:
        one, two = await kube.worker("one"), await kube.worker("two")
        await kube.watched()
        kube.api.remove_unseen(PODS, "one")
        kube.api.compact(as_event=as_event)
        await kube.left(one)
        assert await kube.bench.gateway.is_up(two)
        name = f'kvgate_kube_relists_total{{reason="expired",source="{BY_LABEL}"}}'
        assert (await kube.bench.gateway.metrics())[name] >= 1


async def test_a_watch_that_is_cut_within_a_line_goes_on_where_it_was() -> None:
    async with cluster(BY_LABEL) as kube:
        await kube.worker("one")
        await kube.watched()
        kube.api.cut()
        await kube.worker("two")
        assert kube.api.lists(PODS) == 1
        assert (await kube.bench.gateway.metrics())[f'kvgate_kube_failures_total{{source="{BY_LABEL}"}}'] >= 1


async def test_an_unreadable_line_leads_to_a_list() -> None:
    async with cluster(BY_LABEL) as kube:
        await kube.worker("one")
        await kube.watched()
        kube.api.send(b'{"type":"ADDED","object":[1]}')
        await until(lambda: kube.api.lists(PODS) == 2, "another list")
        await kube.worker("two")


async def test_a_silent_watch_is_opened_again_at_the_same_version() -> None:
    async with cluster(BY_LABEL, "KVGATE_KUBERNETES_SILENCE_S=0.3") as kube:
        await kube.worker("one")
        await kube.watched()
        kube.api.is_silent = True
        two = await kube.started()
        kube.api.put(PODS, pod("two", port=two.port))
        kube.api.is_silent = False
        await kube.joined(two)
        assert kube.api.lists(PODS) == 1


async def test_rights_that_are_missing_for_a_while_change_nothing() -> None:
    """A restarted API server refuses everybody until it has loaded its roles."""
    async with cluster(BY_LABEL) as kube:
        await kube.worker("one")
        await kube.watched()
        kube.api.status = 403
        await kube.api.stop()
        await kube.api.start()
        await until(lambda: len(kube.api.refused) >= 2, "refused twice")
        assert "403" in await kube.last_error()
        assert await kube.status() == 200
        kube.api.status = 0
        await kube.worker("two")
        assert kube.api.lists(PODS) == 1


async def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with cluster(BY_LABEL, f"KVGATE_KUBERNETES_TOKEN_FILE={token}") as kube:
        kube.api.token = "first"
        await kube.worker("one")
        await kube.watched()
        kube.api.token = "second"
        kube.api.cut()
        await until(lambda: 401 in kube.api.refused, "the old token refused")
        assert await kube.status() == 200
        token.write_text("second\n")
        await kube.worker("two")


async def test_an_api_server_that_is_away_costs_no_request_even_if_a_worker_dies() -> None:
    async with cluster(BY_LABEL) as kube:
        one, two = await kube.worker("one"), await kube.worker("two")
        await kube.watched()
        async with always_asked(kube) as statuses:
            await kube.api.stop()
            await until(lambda: len(statuses) >= 8, "requests without an API server")
            await one.die()

            async def is_down() -> bool:
                return not await kube.bench.gateway.is_up(one)

            await until(is_down, "the probe finds the dead worker")

            async def is_named() -> bool:
                return "cannot connect" in await kube.last_error()

            await until(is_named, "the reason is that of the latest attempt")
            assert await kube.bench.gateway.is_up(two)
            await kube.api.start()
            kube.api.remove(PODS, "one")
            await kube.left(one)
            await kube.worker("three")
            so_far = len(statuses)
            await until(lambda: len(statuses) >= so_far + 8, "requests to the new worker, too")
        assert Counter(statuses).keys() == {200}


@contextlib.asynccontextmanager
async def always_asked(kube: Cluster) -> AsyncIterator[list[int]]:
    """Four clients that send one request after another; yields the statuses of their answers."""
    statuses: list[int] = []
    is_over = asyncio.Event()

    async def ask() -> None:
        while not is_over.is_set():
            statuses.append(await kube.status())

    async with asyncio.TaskGroup() as clients:
        for _ in range(4):
            clients.create_task(ask())
        try:
            yield statuses
        finally:
            is_over.set()


async def test_a_service_has_the_endpoints_of_all_its_slices() -> None:
    async with cluster(SERVICE) as kube:
        one, two = await kube.started(), await kube.started()
        kube.api.put(SLICES, endpoint_slice("a", endpoint(uid="u1", ready=None), port=one.port))
        kube.api.put(SLICES, endpoint_slice("b", endpoint(uid="u1"), port=one.port))
        kube.api.put(SLICES, endpoint_slice("c", endpoint(uid="u2"), port=two.port))
        await kube.joined(one)
        await kube.joined(two)
        kube.api.remove(SLICES, "a")
        kube.api.put(
            SLICES, endpoint_slice("c", endpoint(uid="u2", serving=True, terminating=True), port=two.port)
        )
        await kube.left(two)
        assert await kube.bench.gateway.is_up(one)


async def test_a_pool_is_followed_when_it_is_made_changed_and_deleted() -> None:
    async with cluster(POOL) as kube:
        one, two = await kube.started(), await kube.started()
        kube.api.put(PODS, pod("one"))
        await until(lambda: kube.api.num_watches == 1, "the pool is watched")
        assert "there is no InferencePool vllm" in await kube.last_error()
        kube.api.put(POOLS, pool(one.port, two.port, two.port))
        await kube.joined(one)
        await kube.joined(two)
        kube.api.put(PODS, pod("one", annotations={"llm-d.ai/active-ports": f"{one.port}"}))
        await kube.left(two)
        kube.api.remove(POOLS, "vllm")
        await kube.left(one)
        kube.api.put(POOLS, pool(two.port, uid="uid-of-another"))
        kube.api.put(PODS, pod("one"))
        await kube.joined(two)


async def test_a_kind_that_is_not_served_costs_a_line_in_the_log() -> None:
    api = await KubeApi().start()
    api.absent.add(POOLS)
    try:
        flags = ("--worker", POOL, f"KVGATE_KUBERNETES_API_SERVER={api.url}")
        async with running(*flags, "--probe-interval-s", "0.2") as bench:
            await bench.gateway.logged("404 Not Found; its workers stay unchanged")
            worker = await bench.worker()
            assert (await bench.ask(post(completion()))).status == 200
            assert await bench.gateway.is_up(worker)
            assert sum("404 Not Found" in line for line in bench.gateway.log) == 1
    finally:
        await api.stop()


async def test_several_processes_find_the_same_workers() -> None:
    async with cluster(BY_LABEL, "--processes", "2") as kube:
        await kube.watched(2)
        one = await kube.worker("one")

        async def are_served() -> bool:
            return [await kube.status() for _ in range(4)] == [200] * 4

        await until(are_served, "both processes have found it")
        (name,) = (await kube.bench.gateway.admin("GET", "/admin/workers")).json["sources"]
        assert (name["url"], name["members"]) == (BY_LABEL, [one.url])
        kube.api.remove(PODS, "one")
        await kube.left(one)


async def test_a_source_is_added_and_dropped_at_run_time() -> None:
    async with cluster(BY_LABEL) as kube:
        one, gateway = await kube.worker("one"), kube.bench.gateway
        kube.api.put(SLICES, endpoint_slice("s", endpoint(uid="u"), port=one.port))
        added = await gateway.admin("POST", "/admin/workers", json.dumps({"url": SERVICE}).encode())
        assert added.status == 201
        await kube.watched(2)
        dropped = await gateway.admin("DELETE", f"/admin/workers/{quote(BY_LABEL, safe='')}")
        assert (dropped.status, dropped.json) == (200, {"removed": BY_LABEL})
        assert await gateway.is_up(one)  # the Service has it still
        assert (await gateway.admin("DELETE", f"/admin/workers/{SERVICE}")).status == 200
        await kube.left(one)


async def test_kvgate_check_looks_the_workers_up() -> None:
    async with cluster(BY_LABEL) as kube:
        server = f"KVGATE_KUBERNETES_API_SERVER={kube.api.url}"
        one = await kube.worker("one")
        flags = ("--events", "off", "--dry-run", server)
        printed = await asyncio.to_thread(GatewayProcess.check, "--worker", BY_LABEL, *flags)
        assert printed.startswith(f"{one.id}: approximate")
