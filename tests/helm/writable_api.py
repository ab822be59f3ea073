"""API server that Helm installs into: objects of any kind, created, patched and deleted; no controllers.

It serves the API versions of its version of Kubernetes. Patches are merged field by field; a list in a patch
replaces the one before, but for items with a name.
"""

import asyncio
import json
import threading
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.support.patience import patience

Object = dict[str, Any]

KINDS: dict[str, dict[str, str]] = {
    "api/v1": {
        "secrets": "Secret",
        "services": "Service",
        "configmaps": "ConfigMap",
        "serviceaccounts": "ServiceAccount",
        "pods": "Pod",
    },
    "apis/apps/v1": {"deployments": "Deployment", "daemonsets": "DaemonSet"},
    "apis/discovery.k8s.io/v1": {"endpointslices": "EndpointSlice"},
    "apis/discovery.k8s.io/v1beta1": {"endpointslices": "EndpointSlice"},
    "apis/policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "apis/policy/v1beta1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "apis/autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "apis/autoscaling/v2beta2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "apis/networking.k8s.io/v1": {"ingresses": "Ingress", "networkpolicies": "NetworkPolicy"},
    "apis/rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "apis/gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
    "apis/keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "apis/inference.networking.k8s.io/v1": {"inferencepools": "InferencePool"},
    "apis/monitoring.coreos.com/v1": {
        "servicemonitors": "ServiceMonitor",
        "prometheusrules": "PrometheusRule",
    },
}
SERVED = {
    "apis/discovery.k8s.io/v1": range(21, 99),
    "apis/discovery.k8s.io/v1beta1": range(25),
    "apis/policy/v1": range(21, 99),
    "apis/policy/v1beta1": range(25),
    "apis/autoscaling/v2": range(23, 99),
    "apis/autoscaling/v2beta2": range(26),
}
"""The minor versions of Kubernetes that serve an API; others are served by all."""


class WritableApi:
    """API server in a thread of its own; a context manager. `objects` by path."""

    def __init__(self, minor: int = 30) -> None:
        self._minor = minor
        self._kinds = {path: kinds for path, kinds in KINDS.items() if minor in SERVED.get(path, range(99))}
        self.objects: dict[str, Object] = {}
        self.num_patches = 0
        self.url = ""
        self._version = 1
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "WritableApi":
        self._thread.start()
        assert self._ready.wait(patience(20))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(patience(20))

    def kinds(self) -> list[str]:
        """Kinds of all objects but Helm's own records."""
        found = [each["kind"] for each in self.objects.values() if each.get("type") != "helm.sh/release.v1"]
        return sorted(found)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=8 << 20)
        app.router.add_get("/version", self._about)
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"major": "1", "minor": str(self._minor), "gitVersion": f"v1.{self._minor}.0"}
        )

    async def _versions(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, request: web.Request) -> web.Response:
        found: dict[str, list[dict[str, str]]] = {}
        for _, name, version in (path.split("/") for path in self._kinds if path.startswith("apis/")):
            found.setdefault(name, []).append({"groupVersion": f"{name}/{version}", "version": version})
        groups = [
            {"name": name, "versions": versions, "preferredVersion": versions[0]}
            for name, versions in found.items()
        ]
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if path in self._kinds:
            return self._resources(path)
        body = await request.read()
        match request.method:
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "GET" if path.rpartition("/")[2] in _PLURALS:
                return self._list(path, request.query.get("labelSelector", ""))
            case "POST":
                return self._create(path, json.loads(body))
            case "PUT" | "PATCH" if path in self.objects:
                return self._change(path, request.method, json.loads(body))
            case "DELETE" if path in self.objects:
                return web.json_response(self.objects.pop(path))
        status = {
            "kind": "Status",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
            "message": "not found",
        }
        return web.json_response(status, status=404)

    def _resources(self, path: str) -> web.Response:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": plural, "kind": kind, "namespaced": True, "verbs": verbs}
            for plural, kind in self._kinds[path].items()
        ]
        version = path.partition("/")[2]
        return web.json_response({"kind": "APIResourceList", "groupVersion": version, "resources": resources})

    def _list(self, path: str, selector: str) -> web.Response:
        pairs = [each.split("=") for each in selector.split(",") if each]
        found = [
            each
            for where, each in self.objects.items()
            if where.rpartition("/")[0] == path
            and all(each["metadata"].get("labels", {}).get(key) == value for key, value in pairs)
        ]
        kind = KINDS[path.partition("/namespaces/")[0]][path.rpartition("/")[2]]
        listed = {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
        return web.json_response(listed | {"items": found})

    def _create(self, path: str, new: Object) -> web.Response:
        where = f"{path}/{new['metadata']['name']}"
        if where in self.objects:
            reason = {"kind": "Status", "reason": "AlreadyExists", "code": 409, "message": "it exists"}
            return web.json_response(reason, status=409)
        new["metadata"]["uid"] = f"uid-{self._version}"
        return web.json_response(self._store(where, new), status=201)

    def _change(self, path: str, method: str, body: Object) -> web.Response:
        self.num_patches += method == "PATCH"
        return web.json_response(
            self._store(path, body if method == "PUT" else merged(self.objects[path], body))
        )

    def _store(self, path: str, new: Object) -> Object:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = new
        return new


_PLURALS = {plural for kinds in KINDS.values() for plural in kinds}


def merged(before: Any, patch: Any) -> Any:
    """A strategic merge patch, as far as Helm's upgrades of this chart need it."""
    if isinstance(before, dict) and isinstance(patch, dict):
        found = dict(before)
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            elif not key.startswith("$"):
                found[key] = merged(found.get(key), value)
        return found
    if _are_named(before) and _are_named(patch):
        by_name = {each["name"]: each for each in before}
        for each in patch:
            if each.get("$patch") == "delete":
                by_name.pop(each["name"], None)
            else:
                by_name[each["name"]] = merged(by_name.get(each["name"]), each)
        return list(by_name.values())
    return patch


def _are_named(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(each, dict) and "name" in each for each in items)
