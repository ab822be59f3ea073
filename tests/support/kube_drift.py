"""Answers of a Kubernetes API server in each case that discovery meets: one table, for the fake and a real
server.

    scenario ── put, remove ──► DriftWorld ◄── list, watch ── scenario ──► shapes, as the table has them

A shape is what discovery reads of an answer: status and reason, names, whether pages follow, types of events.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec

from gateway.discovery.kubernetes.api_objects import PODS as POD_CODEC
from gateway.discovery.kubernetes.api_objects import Pod, status_of
from tests.support.kube_api import PODS, POOLS, SLICES, KubeApi, Object, endpoint, endpoint_slice, pod, pool
from tests.support.patience import patience

Shape = str | tuple[str, ...]

ABSENT = "/apis/absent.example/v1/namespaces/llm/things"
"""Collection of a group that no server has."""
READS = ["list", "watch"]
RULES: dict[str, list[Object]] = {
    "reader": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": READS},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READS},
        {"apiGroups": ["absent.example"], "resources": ["things"], "verbs": READS},
    ],
    "picker": [
        {
            "apiGroups": ["inference.networking.k8s.io"],
            "resources": ["inferencepools"],
            "resourceNames": ["vllm"],
            "verbs": READS,
        }
    ],
    "stranger": [],
}
"""Rights by user; each user's token is its name."""
HELD = "kvgate.test/held"
"""Finalizer with which a pod stays for as long as its containers end."""
FUTURE = 10_000_000
"""How far a version lies in the future: an API server restored from a backup is behind its clients."""


class DriftWorld(Protocol):
    """Server of a scenario. `expired` returns a version that is too old to watch from; `compact` makes tokens
    of pages too old; `delete` is for an object that a finalizer keeps, `remove` for any."""

    url: str
    tls: ssl.SSLContext | None

    async def put(self, path: str, found: Object) -> None: ...
    async def remove(self, path: str, name: str) -> None: ...
    async def delete(self, path: str, name: str) -> None: ...
    async def compact(self) -> None: ...
    async def expired(self) -> str: ...
    def become(self, user: str) -> None:
        """Prepare for a request of a user."""


class FakeWorld:
    tls = None

    def __init__(self, api: KubeApi) -> None:
        self.url, self._api = api.url, api
        api.absent.add(ABSENT)

    async def put(self, path: str, found: Object) -> None:
        self._api.put(path, json.loads(json.dumps(found)))

    async def remove(self, path: str, name: str) -> None:
        """Remove an object; a pod shows that it leaves before it goes."""
        if path == PODS and "deletionTimestamp" not in self._api.found(path, name)["metadata"]:
            await self.delete(path, name)
        self._api.remove(path, name)

    async def delete(self, path: str, name: str) -> None:
        found = self._api.found(path, name)
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await self.put(path, found)

    async def compact(self) -> None:
        self._api.compact(as_event=False)

    async def expired(self) -> str:
        await self.compact()
        return "1"

    def become(self, user: str) -> None:
        self._api.token, self._api.rules = user if user in RULES else "another", RULES.get(user)


@dataclass
class Script:
    """A scenario's server with a client, and the shapes of what it answered."""

    world: DriftWorld
    session: aiohttp.ClientSession
    user: str = "reader"
    path: str = PODS
    seen: list[Shape] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.seen = []

    async def page(self, **params: str) -> Any:
        """List, note the shape, and return the body; None where it is no JSON."""
        async with self._get(params) as answer:
            text = await answer.text()
        body = json.loads(text) if text.startswith("{") else None
        if answer.status == 200:
            names = " ".join(each["metadata"]["name"] for each in body["items"] or ())
            self.seen.append(f"200 [{names}]" + (" and more" if body["metadata"].get("continue") else ""))
        else:
            self.seen.append(_refusal(answer.status, text))
        return body

    async def version(self) -> str:
        """The version of a list, which is not noted."""
        body = await self.page()
        self.seen.pop()
        return str(body["metadata"]["resourceVersion"])

    async def watched(
        self, version: str, num: int, act: Callable[[], Awaitable[None]] | None = None, **params: str
    ) -> list[bytes]:
        """Watch until `num` lines have come, or the server ends it; `act` once it is open."""
        asked = params | {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        lines: list[bytes] = []
        async with self._get({"timeoutSeconds": "60"} | asked) as answer:
            if answer.status != 200:
                self.seen.append(_refusal(answer.status, await answer.text()))
                return []
            if act is not None:
                await act()
            async with asyncio.timeout(patience(20)):
                while len(lines) < num and (line := await answer.content.readline()):
                    lines.append(line)
            if answer.connection and answer.connection.transport:
                answer.connection.transport.abort()  # TLS would be closed later than the test
        self.seen.append(tuple(map(_event, lines)))
        return lines

    @asynccontextmanager
    async def _get(self, params: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        self.world.become(self.user)
        headers = {"Authorization": f"Bearer {self.user}", "Accept": "application/json"}
        ssl_context = True if self.world.tls is None else self.world.tls
        url = self.world.url + self.path
        async with self.session.get(url, params=params, headers=headers, ssl=ssl_context) as answer:
            yield answer


def _refusal(status: int, text: str) -> str:
    found = status_of(text.encode())
    assert found.code in (0, status), text
    return f"{status} {found.reason}".strip()


def _event(line: bytes) -> str:
    event = json.loads(line)
    found = event["object"]
    if event["type"] == "ERROR":
        return f"ERROR {found['code']} {found['reason']}"
    metadata = found["metadata"]
    is_leaving = " leaving" if metadata.get("deletionTimestamp") and event["type"] == "MODIFIED" else ""
    return f"{event['type']} {metadata.get('name', '')}{is_leaving}"


# scenarios ---------------------------------------------------------------------------------------


async def _three(script: Script) -> None:
    for name in "abc":
        await script.world.put(PODS, pod(name, "127.0.0.2"))


async def pages(script: Script) -> None:
    await script.page()
    await _three(script)
    first = await script.page(limit="2")
    await script.world.put(PODS, pod("b2", "127.0.0.2"))  # behind the first page, and not in its list
    rest = await script.page(limit="2", **{"continue": first["metadata"]["continue"]})
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    await script.page(labelSelector="app=other")
    await script.page(**{"continue": "nonsense"})


async def old_page(script: Script) -> None:
    await _three(script)
    first = await script.page(limit="1")
    await script.world.put(PODS, pod("d", "127.0.0.2"))
    await script.world.compact()
    await script.page(limit="1", **{"continue": first["metadata"]["continue"]})


async def live_events(script: Script) -> None:
    async def act() -> None:
        held = pod("a", "127.0.0.2")
        held["metadata"]["finalizers"] = [HELD]
        await script.world.put(PODS, held)
        await script.world.delete(PODS, "a")
        await script.world.remove(PODS, "a")

    lines = await script.watched(await script.version(), 3, act)
    events = [POD_CODEC.event(line) for line in lines]
    versions = [int(event.version) for event in events]
    assert versions == sorted(set(versions))
    uids = {json.loads(line)["object"]["metadata"]["uid"] for line in lines}
    assert events[-1].deleted and uids == {events[-1].deleted.uid}


async def past_events(script: Script) -> None:
    version = await script.version()
    await script.world.put(PODS, pod("a", "127.0.0.2"))
    await script.world.put(PODS, pod("b", "127.0.0.2"))
    await script.world.remove(PODS, "a")
    await script.watched(version, 4)


async def selection(script: Script) -> None:
    other = {"labels": {"app": "other"}}
    await script.world.put(PODS, pod("a", "127.0.0.2"))
    await script.world.put(PODS, pod("b", "127.0.0.2", **other))
    version = await script.version()

    async def act() -> None:
        await script.world.put(PODS, pod("a", "127.0.0.2", **other))
        await script.world.put(PODS, pod("b", "127.0.0.2"))

    await script.watched(version, 2, act, labelSelector="app=vllm")
    await script.watched(version, 2, labelSelector="app=vllm")
    await script.page(labelSelector="app=vllm")


async def expired_version(script: Script) -> None:
    await script.watched(await script.world.expired(), 2)


async def future_version(script: Script) -> None:
    version = str(int(await script.version()) + FUTURE)

    async def act() -> None:
        await script.world.put(PODS, pod("a", "127.0.0.2"))

    await script.watched(version, 1, act, timeoutSeconds="2")


async def no_token(script: Script) -> None:
    script.user = "unknown"
    await script.page()
    await script.watched("1", 1)


async def no_rights(script: Script) -> None:
    script.user = "stranger"
    await script.page()
    await script.watched("1", 1)


async def absent_kind(script: Script) -> None:
    script.path = ABSENT
    await script.page()
    await script.watched("1", 1)


async def one_name(script: Script) -> None:
    await script.world.put(POOLS, pool(8000))
    await script.world.put(POOLS, pool(8000, name="another"))
    script.user, script.path = "picker", POOLS
    await script.page()
    await script.page(fieldSelector="metadata.name=another")
    body = await script.page(fieldSelector="metadata.name=vllm")
    version = str(body["metadata"]["resourceVersion"])
    await script.watched(version, 1)

    async def act() -> None:
        await script.world.put(POOLS, pool(8001, name="another"))
        await script.world.put(POOLS, pool(8001))

    await script.watched(version, 1, act, fieldSelector="metadata.name=vllm")


async def slices(script: Script) -> None:
    script.path = SLICES
    await script.world.put(SLICES, endpoint_slice("s", endpoint("127.0.0.2")))
    await script.page(labelSelector="kubernetes.io/service-name=vllm")


DRIFT: dict[str, tuple[Callable[[Script], Awaitable[None]], list[Shape]]] = {
    "pages": (
        pages,
        ["200 []", "200 [a b] and more", "200 [c]", "200 []", "400 BadRequest"],
    ),
    "a page that is too old": (old_page, ["200 [a] and more", "410 Expired"]),
    "events of an open watch": (live_events, [("ADDED a", "MODIFIED a leaving", "DELETED a")]),
    "events before the watch": (past_events, [("ADDED a", "ADDED b", "MODIFIED a leaving", "DELETED a")]),
    "an object leaves the selector": (
        selection,
        [("DELETED a", "ADDED b"), ("DELETED a", "ADDED b"), "200 [b]"],
    ),
    "a version that is too old": (expired_version, [("ERROR 410 Expired",)]),
    "a version of the future": (future_version, [()]),
    "an unknown token": (no_token, ["401 Unauthorized", "401 Unauthorized"]),
    "no rights": (no_rights, ["403 Forbidden", "403 Forbidden"]),
    "a kind that is not served": (absent_kind, ["404", "404"]),
    "rights for one name": (
        one_name,
        ["403 Forbidden", "403 Forbidden", "200 [vllm]", "403 Forbidden", ("MODIFIED vllm",)],
    ),
}
"""Scenarios with the shapes that both servers must show."""

FAKE_ONLY: dict[str, tuple[Callable[[Script], Awaitable[None]], list[Shape], str]] = {
    "EndpointSlices": (slices, ["200 [s]"], SLICES),
}
"""Scenarios of what the real API server (1.20) is too old for, with the collection that it does not serve."""


async def shapes(world: DriftWorld, run: Callable[[Script], Awaitable[None]]) -> list[Shape]:
    """Play a scenario."""
    async with aiohttp.ClientSession() as session:
        script = Script(world, session)
        await run(script)
    await asyncio.sleep(0)  # aborted transports are closed in the next iteration
    return script.seen


def read_pod(body: Any) -> Pod:
    """The only pod of a list as discovery reads it, without what differs from server to server."""
    (found,) = POD_CODEC.page(msgspec.json.encode(body)).items or ()
    found.metadata.uid = found.metadata.resource_version = ""
    return found
