"""The admin API of several processes: one address that answers for all.

/health              the host's; /ready of all: ready if one of them is
/metrics             added up (`processes/metrics_merge.py`), with the supervisor's own
GET                  merged (`processes/json_merge.py`) where the table (`admin/endpoint_table.py`) has the
                     answer's fields; else from the first process that has it
POST, DELETE, PUT    to all of them, one request after the other; the first error is the answer
/, /login, /admin/events   the console, here: it reads what is merged
/admin/adapters      changes at workers: by one process, and the others learn of it
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.admin.audit import CALLER_HEADER, caller_of
from gateway.admin.console.event_streams import add_streams
from gateway.admin.console.handlers import console_handlers
from gateway.admin.endpoint_table import ProcessScope, bound
from gateway.app.gateway_parts import Parts
from gateway.config.server import MAX_BODY_BYTES
from gateway.core.errors import ConfigError
from gateway.observability.metric_spec import MetricSpec
from gateway.processes import metrics_merge
from gateway.processes.json_merge import Merge, merge, merger_of
from gateway.processes.metric_reference import PROCESS_RESPONSES, PROCESSES, RESTARTS
from gateway.processes.metrics_merge import Family, Page

log = logging.getLogger("kvgate.admin")

ASK_TIMEOUT_S = 10.0
MAX_ITEMS = 100
"""Items of a merged list of ids: as many as one process would show."""


PASSED_ON = frozenset({"content-type", "authorization"})
OF_THE_HOP = frozenset(
    {
        "host",
        "content-length",
        "connection",
        "transfer-encoding",
        "accept-encoding",
        "expect",
        CALLER_HEADER,
    }
)


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request to the admin API, with those of its headers that are passed on."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    async def of(cls, request: web.Request, *, is_whole: bool = False) -> "AdminRequest":
        """HEAD is asked as GET: who answers the client leaves the body out. `is_whole`: with all headers."""
        passed_on = {name.lower() for name in request.headers} - OF_THE_HOP if is_whole else PASSED_ON
        headers = {name: value for name, value in request.headers.items() if name.lower() in passed_on}
        if caller := caller_of(request):
            headers[CALLER_HEADER] = caller
        method = "GET" if request.method == "HEAD" else request.method
        return cls(method, request.raw_path, await request.read(), headers)

    def encode(self) -> bytes:
        """Encode the request as HTTP/1.0, for a connection of its own."""
        headers = {"Host": "kvgate", "Content-Length": str(len(self.body)), **self.headers}
        lines = [f"{self.method} {self.target} HTTP/1.0", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + self.body


@dataclass(frozen=True, slots=True)
class AdminReply:
    """Response of a process."""

    status: int
    content_type: str
    body: bytes


class AdminPeer(Protocol):
    """Process with an admin API. `ask` raises OSError (TimeoutError is one) where it does not answer."""

    @property
    def row(self) -> int: ...
    @property
    def has_begun(self) -> bool: ...
    @property
    def num_restarts(self) -> int: ...
    async def ask(self, question: AdminRequest) -> AdminReply: ...


class Aggregate:
    """Merged admin API. `processes` returns the live ones, ready ones first: a change goes to all, questions
    to those that have begun. `changed` is called after each request that changed something in all."""

    def __init__(
        self,
        processes: Callable[[], Sequence[AdminPeer]],
        is_stopping: Callable[[], bool],
        changed: Callable[[], Awaitable[None]],
        reload_policies: Callable[[], Awaitable[AdminReply]],
        reload: Callable[[], Awaitable[Mapping[str, Any]]],
        adapter_timeout_s: float = ASK_TIMEOUT_S,
    ) -> None:
        """Admin API of several processes; a worker may take `adapter_timeout_s` to load an adapter."""
        self._adapter_timeout_s = adapter_timeout_s + 2 * ASK_TIMEOUT_S
        self._processes = processes
        self._is_stopping = is_stopping
        self._changed = changed
        self._reload_policies = reload_policies
        self._reload_config = reload
        self._change = asyncio.Lock()
        self._seen: dict[int, Page] = {}
        self._gone: dict[int, Page] = {}
        self._registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self._registry.register(collector)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 20)
        app.add_routes(
            [*bound(self._handlers(), Parts.admin_routes()), web.route("*", "/{path:.*}", self._other)]
        )
        add_streams(app)
        return app

    def _handlers(self) -> dict[str, Handler]:
        """Endpoint by its name in the table."""
        merged: dict[str, Handler] = {
            endpoint.name: partial(self._merged, merger_of(endpoint.answer))
            for endpoint in Parts.admin_routes()
            if endpoint.processes is ProcessScope.MERGED and endpoint.answer
        }
        return {
            **merged,
            **console_handlers(merged),
            "health": self._health,
            "ready": self._ready,
            "metrics": self._metrics,
            "reload_policies": self._reload,
            "reload_config": self._config,
            "explain": self._one,
            "load_adapter": self._adapter,
            "unload_adapter": self._adapter,
        }

    def gone(self, row: int) -> None:
        """Keep the counts of a process that died."""
        if page := self._seen.pop(row, None):
            self._gone[row] = metrics_merge.merge([self._gone.get(row, {}), metrics_merge.totals(page)])

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _metrics(self, request: web.Request) -> web.Response:
        replies = await self._ask_all(await AdminRequest.of(request))
        refused = [reply for _, reply in replies if reply.status != 200]
        if refused:
            return _answer(refused[0])
        for process, reply in replies:
            self._seen[process.row] = metrics_merge.parse(reply.body.decode())
        own = metrics_merge.parse(generate_latest(self._registry).decode())
        page = metrics_merge.merge([*self._seen.values(), *self._gone.values(), own, self._of_processes()])
        return web.Response(
            body=metrics_merge.write(page).encode(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _one(self, request: web.Request) -> web.Response:
        """Response of any one process, for a request that changes nothing."""
        request = request.clone(client_max_size=MAX_BODY_BYTES)
        question = await AdminRequest.of(request, is_whole=True)
        for process in self._processes():
            if process.has_begun and (reply := await self._ask(process, question)):
                return _answer(reply)
        return _unavailable()

    async def _adapter(self, request: web.Request) -> web.Response:
        """Change adapters by one process, for all; the others are notified of the workers' new names."""
        question = await AdminRequest.of(request)
        refresh = AdminRequest("POST", "/admin/adapters/names", b"{}", {"content-type": "application/json"})
        async with self._change:
            begun = [process for process in self._processes() if process.has_begun]
            if not begun:
                return _unavailable()
            reply = await self._ask(begun[0], question, self._adapter_timeout_s)
            await asyncio.gather(*(self._ask(process, refresh) for process in begun[1:]))
        return _answer(reply) if reply else _unavailable("a process did not answer; retry")

    async def _reload(self, request: web.Request) -> web.Response:
        """Reload the policies of all processes, and of those that start later."""
        if request.content_type != "application/json":
            return _refused(415, "send a body of type application/json, such as {}")
        async with self._change:
            return _answer(await self._reload_policies())

    async def _config(self, request: web.Request) -> web.Response:
        """Reload the configuration, and have all processes change together."""
        if request.content_type != "application/json":
            return _refused(415, "send a body of type application/json, such as {}")
        try:
            async with self._change:
                return web.json_response(await self._reload_config())
        except ConfigError as exc:
            return _refused(400, str(exc))

    def register(self, collector: Collector) -> None:
        """Add metrics of the supervisor's own."""
        self._registry.register(collector)

    def _of_processes(self) -> Page:
        """Metrics of the processes themselves, by their number."""
        processes = self._processes()
        rows = sorted(self._seen.keys() | self._gone.keys())
        answered = {
            row: sum(
                metrics_merge.sum_of(pages.get(row, {}), "kvgate_responses_total")
                for pages in (self._seen, self._gone)
            )
            for row in rows
        }
        restarts = {f'{{process="{process.row}"}}': process.num_restarts for process in processes}
        families = (
            (PROCESSES, {"": len(processes)}),
            (RESTARTS, restarts),
            (PROCESS_RESPONSES, {f'{{process="{row}"}}': num for row, num in answered.items()}),
        )
        return {spec.name: _family(spec, samples) for spec, samples in families}

    async def _other(self, request: web.Request) -> web.Response:
        question = await AdminRequest.of(request)
        if question.method != "GET":
            return await self._change_all(question)
        replies = [reply for _, reply in await self._ask_all(question)]
        found = [reply for reply in replies if reply.status == 200] or replies
        return _answer(found[0]) if found else _unavailable()

    async def _merged(self, one: Merge, request: web.Request) -> web.Response:
        replies = [reply for _, reply in await self._ask_all(await AdminRequest.of(request))]
        good = [reply for reply in replies if reply.status == 200]
        if not good:
            return _answer(replies[0]) if replies else _unavailable()
        body = _shorten(merge([msgspec.json.decode(reply.body) for reply in good], one))
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _ready(self, request: web.Request) -> web.Response:
        replies = [reply for _, reply in await self._ask_all(await AdminRequest.of(request))]
        if not replies or self._is_stopping():
            return _unavailable("the gateway is stopping" if self._is_stopping() else None)
        return _answer(min(replies, key=lambda reply: reply.status))

    async def _change_all(self, question: AdminRequest) -> web.Response:
        """Send a change to one process after the other, so that all see changes in the same order."""
        async with self._change:
            asked = list(self._processes())
            replies = [reply for _, reply in await self._ask_all(question)]
            await self._changed()
        if len(replies) < len(asked) or not replies:
            return _unavailable(
                f"{len(asked) - len(replies)} of {len(asked)} processes did not answer; retry"
            )
        return _answer(max(replies, key=lambda reply: reply.status))

    async def _ask_all(self, question: AdminRequest) -> list[tuple[AdminPeer, AdminReply]]:
        """Replies of the processes that answer."""
        processes = [p for p in self._processes() if p.has_begun or question.method != "GET"]
        asked = [self._ask(process, question) for process in processes]
        replies = await asyncio.gather(*asked)
        return [(process, reply) for process, reply in zip(processes, replies, strict=True) if reply]

    async def _ask(
        self, process: AdminPeer, question: AdminRequest, timeout_s: float = ASK_TIMEOUT_S
    ) -> AdminReply | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await process.ask(question)
        except OSError as exc:
            log.warning("process %d: no answer to an admin request: %s", process.row, exc or "too late")
            return None


def _family(spec: MetricSpec, samples: Mapping[str, float]) -> Family:
    """The metric with its samples by label set."""
    kind = spec.kind.value
    comments = [f"# HELP {spec.name} {spec.help}", f"# TYPE {spec.name} {kind}"]
    return Family(kind, comments, {spec.name + labels: float(value) for labels, value in samples.items()})


def _shorten(merged: Any) -> Any:
    """Shorten lists of ids to the length of one process's."""
    if not isinstance(merged, dict):
        return merged
    return {
        name: value[:MAX_ITEMS] if isinstance(value, list) and value and isinstance(value[0], str) else value
        for name, value in merged.items()
    }


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def _answer(reply: AdminReply) -> web.Response:
    return web.Response(status=reply.status, body=reply.body, content_type=reply.content_type)


def _unavailable(why: str | None = None) -> web.Response:
    error = {
        "message": why or "no process is ready",
        "type": "server_error",
        "param": None,
        "code": "no_worker",
    }
    return web.json_response({"error": error}, status=503)
