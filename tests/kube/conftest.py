"""A real API server for all tests of this folder; its namespace `llm` is empty for each of them."""

from collections.abc import Iterator

import pytest

from tests.kube.definitions import CUSTOM, definition
from tests.support.kube_api import PODS, POOLS
from tests.support.kube_drift import RULES
from tests.support.real_cluster import RealCluster


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with RealCluster(tmp_path_factory.mktemp("kube")) as cluster:
        for name in ("llm", "engines"):
            cluster.namespace(name)
        cluster.define(*map(definition, CUSTOM))
        for user, rules in RULES.items():
            cluster.allow(f"users:{user}", rules, {"kind": "User", "name": user})
        yield cluster


@pytest.fixture
def cluster(one_cluster: RealCluster) -> Iterator[RealCluster]:
    yield one_cluster
    for path in (PODS, POOLS):
        one_cluster.clear(path)
