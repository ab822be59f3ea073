"""Watch of one kind over a connection: lists, changes, and what is logged of failures."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.discovery.kubernetes.api_objects import PODS as POD_CODEC
from gateway.discovery.kubernetes.api_objects import Pod
from gateway.discovery.kubernetes.client import ApiClient, ApiQuery
from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.reflector import SyncPhase
from gateway.discovery.kubernetes.watch import ObjectWatch, WatchTimes
from gateway.runtime.tasks import Tasks
from tests.support.kube_api import PODS, KubeApi, pod
from tests.support.patience import until
from tests.support.worlds.lifecycle import warnings


class WatchWorld:
    def __init__(self, api: KubeApi, times: WatchTimes) -> None:
        self.api = api
        self.client = ApiClient(ClusterAccess(api.url))
        self.lists: list[list[str]] = []
        self.changes: list[str] = []
        self.watch = ObjectWatch[Pod](
            "k8s://llm/pods",
            self.client,
            ApiQuery(PODS),
            POD_CODEC,
            on_list=lambda pods: self.lists.append(sorted(pods)),
            on_change=lambda change: self.changes.append(change.name),
            times=times,
        )


@asynccontextmanager
async def watching(
    *names: str, times: WatchTimes | None = None, max_page: int = 500
) -> AsyncIterator[WatchWorld]:
    api = await KubeApi(max_page=max_page).start()
    for name in names:
        api.put(PODS, pod(name))
    world, tasks = WatchWorld(api, times or WatchTimes()), Tasks()
    tasks.start("watch", world.watch.run())
    try:
        yield world
    finally:
        await tasks.stop()
        await world.client.close()
        await api.stop()


async def test_pages_and_then_changes() -> None:
    async with watching("a", "b", "c", max_page=1) as world:
        await until(lambda: world.api.num_watches == 1)
        assert (world.lists, len(world.api.requests)) == ([["a", "b", "c"]], 4)
        world.api.put(PODS, pod("d"))
        world.api.remove(PODS, "a")
        await until(lambda: world.changes == ["d", "a"])
        assert sorted(world.watch.reflector.objects) == ["b", "c", "d"]
        assert "watching" in repr(world.watch)


async def test_a_bookmark_moves_the_version_and_confirms_the_objects() -> None:
    async with watching("a") as world:
        await until(lambda: world.api.num_watches == 1)
        world.api.version = 50
        before = time.monotonic()
        world.api.bookmark()
        await until(lambda: world.watch.reflector.version == "50")
        assert (world.watch.reflector.synced_at or 0.0) >= before


async def test_a_list_comes_again_after_its_interval_and_finds_deletions() -> None:
    async with watching("a", "b", times=WatchTimes(relist_s=1.0)) as world:
        await until(lambda: world.lists == [["a", "b"]] and world.api.num_watches == 1)
        world.api.remove_unseen(PODS, "a")
        await until(lambda: len(world.lists) >= 2)
        assert (world.lists[1], world.watch.reflector.relists["interval"]) == (["b"], 1)


async def test_a_failure_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kvgate.kubernetes")
    async with watching("a") as world:
        await until(lambda: world.api.num_watches == 1)
        world.api.status = 500
        world.api.cut()
        await until(lambda: len(world.api.refused) >= 3)
        assert world.watch.last_error == "500 refused with 500"
        assert sum("500 refused with 500; its workers stay" in line for line in warnings(caplog)) == 1
        world.api.status = 0
        await until(lambda: world.watch.last_error is None)
        assert [r.message for r in caplog.records if "watch recovered" in r.message]
        assert len(world.lists) == 1


async def test_an_unreadable_list_changes_nothing() -> None:
    async with watching() as world:
        await until(lambda: world.lists == [[]])
        bad = pod("a")
        bad["status"]["podIP"] = 7
        world.api.put(PODS, bad)
        await until(lambda: (world.watch.last_error or "").startswith("unreadable list"))
        assert (world.lists, world.watch.reflector.phase) == ([[]], SyncPhase.LISTING)
        world.api.put(PODS, pod("a"))
        await until(lambda: world.lists == [[], ["a"]])


async def test_an_error_event_ends_the_watch() -> None:
    async with watching("a") as world:
        await until(lambda: world.api.num_watches == 1)
        world.api.send(b'{"type":"ERROR","object":{"message":"etcd is away","code":500}}')
        await until(lambda: world.watch.reflector.num_failures == 1)
        world.api.put(PODS, pod("b"))
        await until(lambda: world.changes == ["b"])
        assert len(world.lists) == 1


async def test_silence_is_no_failure() -> None:
    async with watching("a", times=WatchTimes(silence_s=0.05)) as world:
        await until(lambda: sum("watch" in query for _, query in world.api.requests) >= 3)
        reflector = world.watch.reflector
        assert (reflector.num_failures, len(world.lists), world.watch.last_error) == (0, 1, None)
