"""Objectives and rewrites of a pool before the tests' API server: changes, absent kinds, the older group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.discovery.kubernetes import reflector
from gateway.discovery.kubernetes.client import ApiClient
from gateway.discovery.kubernetes.pool_objects import WatchedPoolObjects
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.runtime.tasks import Tasks
from tests.support.kube_api import (
    OBJECTIVES,
    OLDER_OBJECTIVES,
    OLDER_REWRITES,
    REWRITES,
    KubeApi,
    model_rewrite,
    objective,
    rewrite_rule,
    served_api,
)
from tests.support.patience import until
from tests.support.worlds.lifecycle import warnings

ALL = {OBJECTIVES, OLDER_OBJECTIVES, REWRITES, OLDER_REWRITES}


@dataclass
class PoolWorld:
    api: KubeApi
    client: ApiClient
    times: WatchTimes
    changes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = WatchedPoolObjects("llm", "vllm", self.client, lambda: self.changes.append(1), self.times)

    def rewritten(self, name: str) -> str:
        return self.pool.found.rewrites.target(name, b"")


@asynccontextmanager
async def pool_world(*absent: str, relist_s: float = 600.0) -> AsyncIterator[PoolWorld]:
    tasks = Tasks()
    async with served_api(absent=set(absent)) as (api, client):
        made = PoolWorld(api, client, WatchTimes(relist_s))
        made.pool.start(tasks.start)
        try:
            yield made
        finally:
            await tasks.stop()
            made.pool.stop()


async def test_objects_come_change_and_go() -> None:
    async with pool_world() as kube:
        await until(lambda: kube.api.num_watches == 2)
        kube.api.put(OBJECTIVES, objective("chat", 10))
        kube.api.put(REWRITES, model_rewrite("r", rewrite_rule("chat", to={"chat-v2": 1})))
        await until(lambda: kube.pool.priorities == {"chat": 10} and kube.rewritten("chat") == "chat-v2")
        kube.api.put(OBJECTIVES, objective("chat", 20))
        kube.api.remove(REWRITES, "r")
        await until(lambda: kube.pool.priorities == {"chat": 20} and kube.rewritten("chat") == "chat")
        assert (kube.pool.last_error, len(kube.changes) >= 4) == (None, True)
        assert not {path for path, _ in kube.api.requests} & {OLDER_OBJECTIVES, OLDER_REWRITES}


async def test_the_older_group_counts_until_the_other_is_served() -> None:
    async with pool_world(OBJECTIVES, REWRITES, relist_s=0.5) as kube:
        kube.api.put(OLDER_OBJECTIVES, objective("chat", 1))
        await until(lambda: kube.pool.priorities == {"chat": 1})
        assert kube.pool.last_error is None
        kube.api.put(OBJECTIVES, objective("chat", 2))
        kube.api.absent.clear()
        await until(lambda: kube.pool.priorities == {"chat": 2})


@pytest.mark.parametrize("status", [403, 404])
async def test_kinds_that_are_not_there_cost_a_line_in_the_log_and_come_later(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_PAUSE_S", 0.05)
    async with pool_world(*(ALL if status == 404 else ())) as kube:
        kube.api.status = 403 if status == 403 else 0
        await until(lambda: len(kube.api.refused) >= 12)
        lines = [line for line in warnings(caplog) if "Inference" in line]
        reason = "refused with 403" if status == 403 else "Not Found"
        why = f"of llm/vllm: {status} {reason}"
        assert sorted(lines) == [
            f"Kubernetes InferenceModelRewrites {why}; model names stay unchanged",
            f"Kubernetes InferenceObjectives {why}; priorities stay unchanged",
        ]
        assert f"InferenceObjectives of llm/vllm: {status}" in (kube.pool.last_error or "")
        kube.api.put(OBJECTIVES, objective("chat", 10))
        kube.api.absent.clear()
        kube.api.status = 0
        await until(lambda: kube.pool.priorities == {"chat": 10} and kube.pool.last_error is None)


async def test_an_api_server_that_is_away_leaves_them_as_they_are() -> None:
    async with pool_world() as kube:
        kube.api.put(OBJECTIVES, objective("chat", 10))
        await until(lambda: kube.pool.priorities == {"chat": 10} and kube.api.num_watches == 2)
        await kube.api.stop()
        await until(lambda: kube.pool.last_error is not None)
        assert kube.pool.priorities == {"chat": 10}
        await kube.api.start()
        kube.api.put(OBJECTIVES, objective("chat", 11))
        await until(lambda: kube.pool.priorities == {"chat": 11})


async def test_a_rule_that_cannot_be_used_is_the_last_error() -> None:
    async with pool_world() as kube:
        kube.api.put(REWRITES, model_rewrite("r", rewrite_rule("chat")))
        await until(lambda: "r: a rule has no target" in (kube.pool.last_error or ""))
        assert "llm/vllm" in repr(kube.pool)
