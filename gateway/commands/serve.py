"""Command `kvgate serve`, from first socket to exit code: one process or several, new or in place of another.

reach the running gateway ─► sockets: its own, or bound ─► start, warm up ─► accept ─► it drains
                                                                               │
stop: drain for `drain_timeout_s`  ◄── SIGTERM, SIGINT ◄───────────────────────┤
hand over: finish for `takeover_drain_s` ◄── another gateway has taken over ◄──┘
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from gateway.app.reloads import Reloads, Reread
from gateway.config import Config
from gateway.config.worker_specs import drains_of, parse_spec, spec_of, without_drains
from gateway.core.errors import ConfigError
from gateway.http.url import netloc_of
from gateway.observability.log_sink import LogSink
from gateway.processes.supervisor import WARM_UP_S, Supervisor
from gateway.redis.embedded import embedded
from gateway.runtime import process_limits
from gateway.runtime.tasks import Tasks, on_hangup, stop_event
from gateway.server.handover import Predecessor, TakeoverPoint
from gateway.server.socket_set import Sockets, socket_specs
from gateway.server.systemd import READY, STOPPING, activated, notify, reloading
from gateway.tenancy.auth.admin_access import settle

log = logging.getLogger("kvgate")


class Service(Protocol):
    """Gateway of one process, or a supervisor of several."""

    @property
    def added_workers(self) -> list[str]: ...
    async def start(self, workers: Sequence[str] = (), warm_up_s: float = 0.0) -> None: ...
    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None: ...
    async def add_workers(self, urls: Sequence[str]) -> None: ...

    reloads: Reloads | None

    async def reload(self) -> Mapping[str, Any]: ...
    async def reload_keys(self) -> None: ...
    async def leave(self, seconds: float, stop: asyncio.Event) -> bool: ...
    async def stop(self, drain_s: float | None = None) -> None: ...


class SingleProcess:
    """Gateway in one process. Imported here, since a supervisor has no use for its libraries."""

    def __init__(self, config: Config, sink: LogSink | None = None) -> None:
        from gateway.app import Gateway
        from gateway.app.gateway_parts import Surroundings
        from gateway.runtime.gc_policy import GcPolicy

        self._gateway = Gateway(config, Surroundings(sink=sink))
        self._garbage = GcPolicy(self._gateway.metrics.gc_pause_s.observe)
        self.listen, self.leave = self._gateway.listen, self._gateway.leave
        process_limits.prepare()
        self._garbage.settle()

    @property
    def added_workers(self) -> list[str]:
        gateway, parts = self._gateway, self._gateway.parts
        roles, sources = gateway.roster.declared.roles, parts.sources.sources
        known = [e.url for e in gateway.roster if not sources.is_member(e.url)]
        urls = [url for url in known if url not in self._configured]
        names = [spec_of(n.url, n.role) for n in sources if n.url not in self._configured]
        return [
            *[spec_of(url, roles.get(url)) for url in urls],
            *names,
            *gateway.parts.lifecycle.lifecycle.specs,
        ]

    async def start(self, workers: Sequence[str] = (), warm_up_s: float = 0.0) -> None:
        await self._gateway.start(serve=False)
        self._configured = set(self._gateway.parts.workers.urls)
        await self.add_workers(workers)
        await self._gateway.warm_up(warm_up_s)

    async def add_workers(self, specs: Sequence[str]) -> None:
        gateway = self._gateway
        for spec in without_drains(specs):
            gateway.add_worker(*parse_spec(spec))
        gateway.parts.lifecycle.lifecycle.resume(drains_of(specs), gateway.roster)

    @property
    def reloads(self) -> Reloads | None:
        return self._gateway.reloads

    @reloads.setter
    def reloads(self, reloads: Reloads | None) -> None:
        self._gateway.reloads = reloads

    async def reload(self) -> Mapping[str, Any]:
        return await self._gateway.reload()

    async def reload_keys(self) -> None:
        with contextlib.suppress(ConfigError):  # already logged
            await self._gateway.parts.credentials.credentials.reload()

    async def stop(self, drain_s: float | None = None) -> None:
        await self._gateway.stop(drain_s)
        self._garbage.release()


async def serve(config: Config, sink: LogSink | None = None, reread: Reread | None = None) -> int:
    """Serve until a signal, or until the last request has ended after another gateway took over. `reread`
    reads the configuration again, at each SIGHUP. Raises ConfigError."""
    given = config
    stop, path = stop_event(), config.server.takeover_socket
    process_limits.raise_open_files()  # child processes inherit the limit
    with contextlib.ExitStack() as opened:
        config = opened.enter_context(embedded(config))
        predecessor = await Predecessor.reach(path) if path else None
        if predecessor:
            opened.callback(predecessor.close)
        passed = activated(list(socket_specs(config)))
        sockets = Sockets(config, predecessor.sockets if predecessor else passed)
        opened.callback(sockets.close)
        config = settle(config, sockets.admin)
        service: Service = Supervisor(config) if config.server.processes > 1 else SingleProcess(config, sink)
        drain_s: float | None = 0.0
        hangups = Tasks()
        if reread is not None:
            service.reloads = Reloads(given, reread)
            on_hangup(lambda: hangups.start("reload", _reload(service)))
        try:
            start = service.start(
                predecessor.workers if predecessor else (), WARM_UP_S if predecessor else 0.0
            )
            if await _is_done(start, unless=stop):
                drain_s = await _serve(config, service, sockets, predecessor, stop)
        finally:
            notify(STOPPING)
            sockets.remove_files()
            await hangups.stop()
            await service.stop(drain_s)
            log.info("stopped")
    return 0


async def _reload(service: Service) -> None:
    notify(reloading())
    with contextlib.suppress(ConfigError):  # already logged; a signal has no other reply
        await service.reload()
    await service.reload_keys()
    notify(READY)


async def _serve(
    config: Config,
    service: Service,
    sockets: Sockets,
    predecessor: Predecessor | None,
    stop: asyncio.Event,
) -> float | None:
    """Accept until the end. Returns the seconds that remaining requests may take then, None as configured."""
    await service.listen(sockets.traffic, sockets.admin)
    sockets.own_files()
    _announce(config, sockets)
    notify(READY)
    if predecessor:
        await service.add_workers(await predecessor.take_over(sockets.all))
    if sockets.takeover is None:
        await stop.wait()
        _say_stopping(config)
        return None
    point = TakeoverPoint(sockets.takeover, sockets.all, lambda: service.added_workers)
    await _is_done(point.taken.wait(), unless=stop)
    if point.taken.is_set():
        sockets.hand_over(point.kept)
        sockets.remove_files()
    elif point.has_heir:  # its files, if it comes to accept; else the next one that starts replaces them
        sockets.hand_over(sockets.all)
    point.close()
    if not point.taken.is_set():
        _say_stopping(config)
        return None
    log.info("process %d has taken over; draining open requests", point.successor)
    await service.leave(config.server.takeover_drain_s, stop)
    return None if stop.is_set() else 0.0


def _say_stopping(config: Config) -> None:
    log.info("stopping: requests in flight have up to %g s to end", config.server.drain_timeout_s)


def _announce(config: Config, sockets: Sockets) -> None:
    if config.server.unix_socket:
        log.info("listening on unix:%s", config.server.unix_socket)
    admin_url = f"http://{netloc_of(config.admin.host, sockets.admin.getsockname()[1])}"
    if config.epp.only:
        return log.info("endpoint picker only, admin on %s", admin_url)
    traffic = netloc_of(config.server.host, sockets.traffic[0].getsockname()[1])
    scheme = "https" if config.tls.cert_file else "http"
    log.info("listening on %s://%s, admin on %s", scheme, traffic, admin_url)


async def _is_done(what: Coroutine[Any, Any, object], *, unless: asyncio.Event) -> bool:
    """Wait for `what` or the event; `what` is cancelled where the event comes first. Returns True if `what`
    ended."""
    loop = asyncio.get_running_loop()
    task, event = loop.create_task(what), loop.create_task(unless.wait())
    await asyncio.wait({task, event}, return_when=asyncio.FIRST_COMPLETED)
    is_done = task.done()
    for other in (task, event):
        other.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return is_done
