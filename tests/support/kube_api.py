"""Kubernetes API server of the tests: lists, watches and bookmarks of objects that a test writes, and faults.

    test ── put, remove, faults ──► KubeApi ◄── list (limit, continue), watch ── gateway

Only what discovery uses is there; its answers, statuses and event lines are those of a real API server
(tests/support/kube_drift.py holds both beside each other).
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from gateway.discovery.kubernetes.client import ApiClient
from gateway.discovery.kubernetes.cluster import ClusterAccess
from loadtest.ports import free_port

PODS = "/api/v1/namespaces/llm/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/llm/inferenceobjectives"
REWRITES = "/apis/llm-d.ai/v1alpha2/namespaces/llm/inferencemodelrewrites"
OLDER_OBJECTIVES = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferenceobjectives"
OLDER_REWRITES = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferencemodelrewrites"

Object = dict[str, Any]


@dataclass(eq=False)
class _Watcher:
    path: str
    query: dict[str, str]
    response: web.StreamResponse
    transport: asyncio.Transport
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


@dataclass(eq=False)
class KubeApi:
    """`status` is answered to every request where it is set, `absent` are collections that are not served,
    `token` the only one accepted where it is set, `rules` (of a Role) are what requests may do. `is_silent`:
    watches are accepted and get nothing."""

    port: int = field(default_factory=free_port)
    tls: ssl.SSLContext | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    token: str = ""
    rules: list[Object] | None = None
    is_silent: bool = False
    max_page: int = 500
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    version: int = 1
    oldest: int = 0
    """Versions up to this one are compacted."""

    def __post_init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._log: list[_Change] = []
        self._watchers: set[_Watcher] = set()
        self._rest: dict[str, tuple[int, list[Object]]] = {}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> "KubeApi":
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        return self

    async def stop(self) -> None:
        """Be away: refuse connections, and reset open ones."""
        for watcher in list(self._watchers):
            watcher.transport.abort()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    # what a test does --------------------------------------------------------------------------

    def put(self, path: str, found: Object) -> None:
        """Add or replace an object."""
        known = self._objects.setdefault(path, {})
        before = known.get(found["metadata"]["name"])
        known[found["metadata"]["name"]] = found
        self._happened(path, before, found)

    def found(self, path: str, name: str) -> Object:
        """A copy of an object."""
        return _copy(self._objects[path][name], self.version)

    def remove(self, path: str, name: str) -> None:
        self._happened(path, self._objects[path].pop(name), None)

    def remove_unseen(self, path: str, name: str) -> None:
        """Remove an object without any event: it was gone while no watch was open."""
        del self._objects[path][name]
        self.version += 1

    def bookmark(self) -> None:
        for watcher in self._watchers:
            found = {"metadata": {"resourceVersion": str(self.version)}}
            watcher.queue.put_nowait(_line("BOOKMARK", found))

    def compact(self, *, as_event: bool) -> None:
        """Forget all versions so far: as an event in each open watch, or at the next request."""
        self.version += 1
        self.oldest = self.version
        for watcher in self._watchers:
            if as_event:
                watcher.queue.put_nowait(_line("ERROR", _expired()))
            watcher.queue.put_nowait(None)

    def cut(self, rest: bytes = b'{"type":"MODIFIED","obj') -> None:
        """Reset each watch in the middle of a line."""
        for watcher in list(self._watchers):
            watcher.transport.write(b"%x\r\n%b\r\n" % (len(rest), rest))
            watcher.transport.abort()

    def send(self, line: bytes) -> None:
        """Send a line to each watch."""
        for watcher in self._watchers:
            watcher.queue.put_nowait(line + b"\n")

    @property
    def num_watches(self) -> int:
        return len(self._watchers)

    def lists(self, path: str) -> int:
        """Number of first pages that were requested."""
        return sum(1 for p, q in self.requests if p == path and "watch" not in q and "continue" not in q)

    # answers -----------------------------------------------------------------------------------

    def _happened(self, path: str, before: Object | None, after: Object | None) -> None:
        self.version += 1
        copies = [each and _copy(each, self.version) for each in (before, after)]
        change = _Change(self.version, path, *copies)
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
        self._log.append(change)
        for watcher in self._watchers:
            if not self.is_silent and (line := change.line(watcher.path, watcher.query)):
                watcher.queue.put_nowait(line)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requests.append((path, query))
        if refusal := self._refusal(request):
            self.refused.append(refusal)
            if path in self.absent:
                return web.Response(text="404 page not found\n", status=404)
            return _status(refusal, _REASONS.get(refusal, ""), f"refused with {refusal}", self.headers)
        return await self._watch(request, path, query) if "watch" in query else self._list(path, query)

    def _refusal(self, request: web.Request) -> int:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return 401
        if self.rules is not None and not any(_allows(rule, request) for rule in self.rules):
            return 403
        if request.path in self.absent:
            return 404
        return self.status

    def _list(self, path: str, query: dict[str, str]) -> web.Response:
        token, version = query.get("continue", ""), self.version
        if token:
            if token not in self._rest:
                return _status(400, "BadRequest", "continue key is not valid")
            version, left = self._rest[token]
            if version < self.oldest:
                return _status(410, "Expired", "The provided continue parameter is too old")
        else:
            known = self._objects.get(path, {})
            left = [known[name] for name in sorted(known) if _selects(query, known[name])]
        end = min(int(query.get("limit", "500")), self.max_page)
        metadata = {"resourceVersion": str(version)}
        if left[end:]:
            metadata["continue"] = f"page{len(self._rest)}"
            self._rest[metadata["continue"]] = version, left[end:]
        return web.json_response({"kind": "List", "metadata": metadata, "items": left[:end]})

    async def _watch(self, request: web.Request, path: str, query: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        watcher = _Watcher(path, query, response, cast(asyncio.Transport, request.transport))
        if int(query["resourceVersion"]) < self.oldest:
            watcher.queue.put_nowait(_line("ERROR", _expired()))
            watcher.queue.put_nowait(None)
        elif not self.is_silent:
            for change in self._log:
                if line := change.line(path, query):
                    watcher.queue.put_nowait(line)
        await response.prepare(request)
        self._watchers.add(watcher)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(float(query["timeoutSeconds"])):
                    while (line := await watcher.queue.get()) is not None:
                        await response.write(line)
        finally:
            self._watchers.discard(watcher)
        return response


_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 429: "TooManyRequests"}


@dataclass(frozen=True, slots=True)
class _Change:
    """Object before and after it changed; None: it was not there."""

    version: int
    path: str
    before: Object | None
    after: Object | None

    def line(self, path: str, query: dict[str, str]) -> bytes | None:
        """The event of a watch: an object that a selector does not select is not there."""
        if path != self.path or self.version <= int(query["resourceVersion"]):
            return None
        before, after = (
            each if each and _selects(query, each) else None for each in (self.before, self.after)
        )
        if after is not None:
            return _line("MODIFIED" if before else "ADDED", after)
        return _line("DELETED", before) if before else None


def _copy(found: Object, version: int) -> Object:
    """An object as it is now, with the version of an event."""
    copied: Object = json.loads(json.dumps(found))
    copied["metadata"]["resourceVersion"] = str(version)
    return copied


def _allows(rule: Object, request: web.Request) -> bool:
    """A rule with names allows lists and watches of one name only, as a field selector has it."""
    parts = request.path.split("/")
    group, resource = ("" if parts[1] == "api" else parts[2]), parts[-1]
    verb = "watch" if "watch" in request.query else "list"
    name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return (
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and ("resourceNames" not in rule or name in rule["resourceNames"])
    )


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    return web.json_response(body, status=code, headers=headers)


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _expired() -> Object:
    message = "too old resource version: 2 (1767)"
    return {"kind": "Status", "status": "Failure", "message": message, "reason": "Expired", "code": 410}


def _selects(query: dict[str, str], found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    pairs = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(key) == value for key, value in pairs) and name in ("", found["metadata"]["name"])


# objects -----------------------------------------------------------------------------------------


def pod(name: str, ip: str = "127.0.0.1", port: int = 8000, uid: str = "", **changes: Any) -> Object:
    """Pod that is ready. Changes: `ready`, `phase`, `reason`, `deleted`, `labels`, `annotations`."""
    ready = "True" if changes.get("ready", True) else "False"
    metadata: Object = {
        "name": name,
        "namespace": "llm",
        "uid": uid or f"uid-{name}",
        "labels": {"app": "vllm"} | changes.get("labels", {}),
        "annotations": changes.get("annotations"),
    }
    if changes.get("deleted"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [{"name": "http", "containerPort": port}, {"name": "metrics", "containerPort": 1}]
    status = {
        "phase": changes.get("phase", "Running"),
        "reason": changes.get("reason"),
        "podIP": ip,
        "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}],
    }
    return {
        "metadata": metadata,
        "spec": {"containers": [{"ports": None}, {"ports": ports}]},
        "status": status,
    }


def endpoint(ip: str = "127.0.0.1", uid: str | None = "u1", **conditions: bool | None) -> Object:
    found: Object = {"addresses": [ip], "conditions": conditions or None}
    return found | ({"targetRef": {"kind": "Pod", "uid": uid}} if uid else {})


def endpoint_slice(name: str, *endpoints: Object, port: int | None = 8000, **changes: Any) -> Object:
    """EndpointSlice of the Service `vllm`. Changes: `kind` (of addresses), `ports`."""
    labels = {"kubernetes.io/service-name": "vllm"}
    return {
        "metadata": {"name": name, "labels": labels, "uid": f"uid-{name}"},
        "addressType": changes.get("kind", "IPv4"),
        "endpoints": list(endpoints) or None,
        "ports": changes.get("ports", [{"name": "http", "port": port, "protocol": "TCP"}]),
    }


def pool(*ports: int, name: str = "vllm", uid: str = "uid-pool", **changes: Any) -> Object:
    """InferencePool. Changes: `labels` that it selects, `protocol`."""
    spec: Object = {
        "selector": {"matchLabels": changes.get("labels", {"app": "vllm"})},
        "targetPorts": [{"number": port} for port in ports] or None,
    }
    if "protocol" in changes:
        spec["appProtocol"] = changes["protocol"]
    return {"metadata": {"name": name, "uid": uid}, "spec": spec}


POOL_REFERENCE = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "vllm"}


def objective(name: str, priority: int | None) -> Object:
    """InferenceObjective of the pool `vllm`."""
    spec: Object = {"poolRef": POOL_REFERENCE, "priority": priority}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}


def rewrite_rule(*names: str, to: Mapping[str, int | None] | None = None) -> Object:
    """Rule for the names of models, or for all names without any; targets with their weights."""
    targets = [{"modelRewrite": name, "weight": weight} for name, weight in (to or {}).items()]
    matches = [{"model": {"type": "Exact", "value": name}} for name in names]
    return {"matches": matches or None, "targets": targets or None}


def model_rewrite(name: str, *rules: Object, created: str = "2026-01-01T00:00:00Z") -> Object:
    """InferenceModelRewrite of the pool `vllm`."""
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"poolRef": POOL_REFERENCE, "rules": list(rules)}}


@asynccontextmanager
async def served_api(**how: Any) -> AsyncIterator[tuple[KubeApi, ApiClient]]:
    api = await KubeApi(**how).start()
    client = ApiClient(ClusterAccess(api.url), timeout_s=20.0)
    try:
        yield api, client
    finally:
        await client.close()
        await api.stop()
