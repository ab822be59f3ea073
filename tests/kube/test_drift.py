"""A real API server gives the answers that the fake one gives (tests/support/test_kube_drift.py)."""

import asyncio
import ssl

import pytest

from tests.support.kube_api import PODS, Object, pod
from tests.support.kube_drift import ABSENT, DRIFT, FAKE_ONLY, read_pod, shapes
from tests.support.real_cluster import RealCluster

pytestmark = pytest.mark.kube


class RealWorld:
    """The real server for a scenario."""

    def __init__(self, cluster: RealCluster) -> None:
        self.url, self._cluster = cluster.url, cluster
        self.tls: ssl.SSLContext | None = ssl.create_default_context(cafile=cluster.ca_file)

    async def put(self, path: str, found: Object) -> None:
        self._cluster.put(path, found)

    async def delete(self, path: str, name: str) -> None:
        self._cluster.delete(path, name)

    async def remove(self, path: str, name: str) -> None:
        self._cluster.remove(path, name)

    async def compact(self) -> None:
        self._cluster.compact()

    async def expired(self) -> str:
        version = self._cluster.done("GET", PODS)["metadata"]["resourceVersion"]
        self._cluster.put(PODS, pod("later", "127.0.0.2"))
        self._cluster.kill()  # with the events that it has in memory
        await asyncio.to_thread(self._cluster.start)
        return str(version)

    def become(self, user: str) -> None:
        """Each request carries its user's token."""


@pytest.mark.parametrize("name", DRIFT)
async def test_the_real_server_answers_as_the_table_says(name: str, cluster: RealCluster) -> None:
    run, expected = DRIFT[name]
    assert await shapes(RealWorld(cluster), run) == expected


@pytest.mark.parametrize("name", FAKE_ONLY)
def test_what_only_the_fake_serves_is_not_served(name: str, cluster: RealCluster) -> None:
    _, _, path = FAKE_ONLY[name]
    assert cluster.ask("GET", path).status == 404
    assert cluster.ask("GET", ABSENT).status == 404


def test_discovery_reads_the_same_of_a_pod(cluster: RealCluster) -> None:
    labels = {"llm-d.ai/role": "decode"}
    annotations = {"llm-d.ai/active-ports": "8000"}
    found = pod("a", "127.0.0.2", ready=False, labels=labels, annotations=annotations)
    cluster.pod(PODS, found)
    assert read_pod(cluster.done("GET", PODS)) == read_pod({"metadata": {}, "items": [found]})
