"""Requests of kvgate as it really sends them: the Role of the chart allows them, and nothing more."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.discovery.kubernetes.pool_objects import WatchedPoolObjects
from gateway.discovery.kubernetes.queries import pool_object_queries
from gateway.discovery.kubernetes.watch import WatchTimes
from gateway.runtime.tasks import Tasks
from tests.helm.tools import VALUES
from tests.support.blackbox.real_kube import ACCESS
from tests.support.chart import GOLDEN, manifests, pod_of
from tests.support.kube_api import KubeApi, pool, served_api
from tests.support.patience import until
from tests.support.real_cluster import RealCluster
from tests.support.worlds.kube_sources import sources_world

pytestmark = pytest.mark.kube

REVIEWS = "/apis/authorization.k8s.io/v1"
POOL_OBJECTS = ("inferenceobjectives", "inferencemodelrewrites")
EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""Resources that each account may ask for, by the cluster's own roles."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """Something that one may do; a name limits it to one object."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


def asked_for(api: KubeApi) -> set[Right]:
    """Rights that the requests at an API server need."""
    return {_right(path, query) for path, query in api.requests}


def _right(path: str, query: dict[str, str]) -> Right:
    parts = path.split("/")
    group = "" if parts[1] == "api" else parts[2]
    verb = "watch" if "watch" in query else "list"
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return Right(verb, group, parts[-1], parts[-2], name)


async def recorded(urls: list[str]) -> set[Right]:
    """Rights that the discovery of these URLs asks for."""
    async with sources_world() as kube:
        num_watches = 0
        for url in urls:
            parts = urlsplit(url)
            if is_pool := parts.path.startswith("/inferencepool/"):
                path = f"/apis/inference.networking.k8s.io/v1/namespaces/{parts.netloc}/inferencepools"
                kube.api.put(path, pool(8000, name=parts.path.rpartition("/")[2]))
            kube.sources.add(url)
            num_watches += 2 if is_pool else 1
        await until(lambda: kube.api.num_watches == num_watches, "all is watched")
        return asked_for(kube.api)


async def recorded_of_objects(namespace: str, pool_name: str) -> set[Right]:
    """Rights that objectives and rewrites of a pool ask for, on servers that have either of their groups."""
    found: set[Right] = set()
    newer = {pool_object_queries(namespace, kind)[0].path for kind in POOL_OBJECTS}
    for absent in (set[str](), newer):
        tasks = Tasks()
        async with served_api(absent=absent) as (api, client):
            watched = WatchedPoolObjects(namespace, pool_name, client, lambda: None, WatchTimes())
            watched.start(tasks.start)
            await until(lambda api=api: api.num_watches == len(POOL_OBJECTS), "both are watched")
            await tasks.stop()
            watched.stop()
            found |= asked_for(api)
    return found


def workers_of(render: Path) -> list[str]:
    """The k8s:// URLs of a render's gateway."""
    arguments = pod_of(render)["containers"][0]["args"]
    return [each for each in arguments if str(each).startswith("k8s://")]


def review(cluster: RealCluster, token: str, right: Right) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "namespace": right.namespace,
        "name": right.name,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    asked = body | {"spec": {"resourceAttributes": attributes}}
    answer = cluster.ask("POST", f"{REVIEWS}/selfsubjectaccessreviews", asked, token)
    assert answer.status == 201, answer.text
    return bool(answer.body["status"]["allowed"])


def rules(cluster: RealCluster, token: str, namespace: str) -> Iterator[Right]:
    """Everything that an account may do in a namespace, as the API lists it."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    asked = body | {"spec": {"namespace": namespace}}
    answer = cluster.ask("POST", f"{REVIEWS}/selfsubjectrulesreviews", asked, token)
    assert answer.status == 201, answer.text
    for rule in answer.body["status"]["resourceRules"]:
        for verb in rule["verbs"]:
            for group in rule.get("apiGroups", [""]):
                for resource in rule.get("resources", []):
                    for name in rule.get("resourceNames") or [""]:
                        yield Right(verb, group, resource, namespace, name)


FORBIDDEN = [
    Right("get", "", "secrets", "llm"),
    Right("list", "", "secrets", "llm"),
    Right("get", "", "pods", "llm"),
    Right("patch", "", "pods", "llm"),
    Right("delete", "", "pods", "llm"),
    Right("create", "", "pods", "llm"),
    Right("list", "", "pods", "default"),
    Right("list", "", "pods", ""),
    Right("list", "inference.networking.k8s.io", "inferencepools", "llm", "another"),
    Right("patch", "apps", "deployments", "llm"),
    Right("create", "", "pods/exec", "llm"),
    Right("get", "", "pods/log", "llm"),
    Right("list", "", "nodes", ""),
]
"""Examples of what no gateway needs; the list of all rules is compared, too."""


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
async def test_a_role_allows_what_is_asked_and_nothing_more(values: Path, cluster: RealCluster) -> None:
    render = GOLDEN / values.name
    asked = await recorded(workers_of(render))
    for each in pod_of(render)["containers"][0]["env"]:
        if each["name"] == "KVGATE_KUBERNETES_POOL_OBJECTS":
            asked |= await recorded_of_objects(*each["value"].split("/"))
    access = access_of(render)
    await asyncio.to_thread(cluster.apply, *access)
    token = cluster.token("llm", access[0]["metadata"]["name"])
    try:
        assert [each for each in sorted(asked) if not review(cluster, token, each)] == []
        assert [each for each in FORBIDDEN if review(cluster, token, each)] == []
        for namespace in ("llm", "engines", "default"):
            allowed = {each for each in rules(cluster, token, namespace) if each.resource not in EVERYBODY}
            assert allowed == {each for each in asked if each.namespace == namespace}
    finally:
        await asyncio.to_thread(cluster.withdraw, *access)


def access_of(render: Path) -> list[Any]:
    """The account of a render's pods, first, and what gives it rights."""
    name = pod_of(render)["serviceAccountName"]
    own = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    return [own, *(each for each in manifests(render) if each["kind"] in ACCESS)]
