"""Supervisor of several processes behind one port: it listens, hands over connections, and replaces dead
processes.

    clients ─► accept ─► the open connection ─► process with the fewest    (a channel to each)
    admins ──► Aggregate ─► a request to each process, one merged response
    shared memory: a row per process: bookings, promises, closed connections

Why it accepts itself: on one listening socket that all share, the kernel wakes any of them, and by
SO_REUSEPORT it hashes addresses; with the few, long-lived connections in front of an LLM fleet either leaves
processes idle beside busy ones. A connection costs one message; a request costs nothing. The open connections
of a process are those sent minus those closed, which it counts in the shared memory.

Each process is started fresh (`python -m kvgate process`), not forked: none inherits another's threads or
sockets. It parses no configuration of its own, and knows the workers that were added since the start.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from gateway.admin.auth import keeper_before
from gateway.app.reloads import Reloads
from gateway.bookings import shared_memory
from gateway.config import Config
from gateway.config.diff import ConfigDiff
from gateway.config.worker_specs import changes_of, drains_of, parse_spec, spec_of, specs_of, with_specs
from gateway.core.errors import ConfigError
from gateway.processes.admin import AdminReply, AdminRequest, Aggregate
from gateway.processes.child_handle import LONGEST_DELAY_S, Process, how_it_ended, restart_delay_s
from gateway.processes.messages import (
    Begin,
    ConfigRejected,
    Drain,
    DrainNotice,
    Prepare,
    Prepared,
    Ready,
    RelayedReport,
    Reported,
    decode_to_supervisor,
    encode,
)
from gateway.processes.reload import answered, change, prepare
from gateway.runtime import process_limits
from gateway.runtime.tasks import Tasks
from gateway.server.acceptor import Acceptor
from gateway.server.admin_runner import AdminRunner
from gateway.server.client_limit import ClientLimit
from gateway.server.draining import closing
from gateway.server.fd_channel import Channel
from gateway.tenancy.auth.admin_access import has_keys

log = logging.getLogger("kvgate.processes")

WARM_UP_S = 15.0
"""Seconds for a new process, or a whole gateway that takes over, to probe the workers and catch up with their
events, while others serve."""
QUICK_DEATH_S = 10.0
COMMAND = (sys.executable, "-P", "-m", "kvgate")
"""Command of a child; -P: as installed for this interpreter, not from the current directory."""
KILL_AFTER_S = 15.0
"""Seconds after the end of a drain: a process that has not ended by then is stuck."""


def _source_of(path: str) -> str | None:
    """Text of the policy file; None where it cannot be read, which the processes then report."""
    try:
        return Path(path).read_text() if path else None
    except (OSError, UnicodeDecodeError):
        return None


def _normal(spec: str) -> str:
    """Worker as processes name it; an invalid one is left to them to reject."""
    try:
        return spec_of(*parse_spec(spec))
    except ValueError:
        return spec


class Supervisor:
    """Gateway of several processes: `start`, `listen`, then `stop`, or `leave` and `stop`, as
    `app.Gateway`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._num_rows = shared_memory.num_rows(config)
        self._memory = shared_memory.create(self._num_rows)
        self._table = shared_memory.table(self._memory, self._num_rows)
        self._used = shared_memory.quota_table(self._memory, self._num_rows)
        self._processes = [Process(row) for row in range(config.server.processes)]
        self._configured = [_normal(spec) for spec in specs_of(config)]
        self._workers: list[str] = []
        self._policy_source: str | None = None
        self._tasks = Tasks()
        self._has_started = self._is_ending = self._is_leaving = False
        self._acceptors: list[Acceptor] = []
        self.reloads: Reloads | None = None
        self._generation = self._num_asked = 0
        self._aggregate = Aggregate(
            self._alive,
            lambda: self._is_ending,
            self._note_workers,
            self.reload_policies,
            self.reload,
            config.admin.adapter_timeout_s,
        )
        self._admin_site: web.SockSite | None = None

    def __repr__(self) -> str:
        rows = ", ".join(f"{p.row}: {p.pid if p.is_alive else 'dead'}" for p in self._processes)
        return f"Supervisor({rows})"

    @property
    def added_workers(self) -> list[str]:
        """Workers that joined at run time."""
        return [spec for spec in self._workers if spec not in self._configured]

    async def start(self, workers: Sequence[str] = (), warm_up_s: float = 0.0) -> None:
        """Start all processes and wait until they are ready. Raises ConfigError if they reject the
        configuration."""
        self._workers = [*self._configured, *workers]
        self._policy_source = _source_of(self.config.policy.file)
        for process in self._processes:
            await self._spawn(process, warm_up_s)
        for process in self._processes:
            await process.began.wait()
            if not process.is_ready:
                raise ConfigError(process.refusal or "a process ended before it was ready; see the log above")
        self._has_started = True
        if self.reloads is not None:
            self._aggregate.register(self.reloads)
        app = self._aggregate.app()
        app.middlewares.append(closing(lambda: self._is_leaving))
        self._keeper = keeper_before(app, self.config, self._tasks)
        self._admin_runner = AdminRunner(
            app, self.config.server.head_timeout_s, self.config.server.body_timeout_s
        )
        await self._admin_runner.setup()

    async def listen(self, traffic: Sequence[socket.socket], admin: socket.socket) -> None:
        """Begin to accept from listening sockets, which are closed by `leave` and `stop`."""
        room = ClientLimit(
            process_limits.descriptors(), self._fewest_clients, asyncio.get_running_loop().time
        )
        self._acceptors = [Acceptor(listening, self._taker, room) for listening in traffic]
        self._accept()
        self._admin_site = web.SockSite(self._admin_runner, admin)
        await self._admin_site.start()

    async def add_workers(self, specs: Sequence[str]) -> None:
        self._workers += [spec for spec in specs if spec not in self._workers]
        for path, body in changes_of(specs):
            question = AdminRequest(
                "POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"}
            )
            for process in self._alive():
                try:
                    reply = await process.ask(question)
                    if reply.status >= 400:  # such as a socket that --worker-networks does not have here
                        log.warning(
                            "process %d: change %s rejected: %s", process.row, body, reply.body.decode()
                        )
                except OSError as exc:  # it is dying: the next one begins with all workers
                    log.warning("process %d: change %s not delivered: %s", process.row, body, exc)

    async def reload_policies(self) -> AdminReply:
        """Reload the policy file in all processes, and in those that start later. The first rejection is the
        reply: if one rejects it, all would."""
        source = _source_of(self.config.policy.file)
        question = AdminRequest("POST", "/admin/policies/reload", b"{}", {"Content-Type": "application/json"})
        reply = AdminReply(503, "application/json", b'{"error":{"message":"no process is ready"}}')
        for process in self._alive():
            try:
                reply = await process.ask(question)
            except OSError as exc:  # it is dying: the next one begins with what the others have
                log.warning("process %d: policies not reloaded: %s", process.row, exc)
                continue
            if reply.status != 200:
                return reply
        if reply.status == 200:
            self._policy_source = source
        return reply

    async def reload(self) -> Mapping[str, Any]:
        """Reload the configuration in all processes, or none. Raises ConfigError."""
        assert self.reloads is not None, "set by `serve`"
        return await self.reloads.reload(self._change)

    async def _change(self, difference: ConfigDiff) -> None:
        new, added, dropped = difference.applied_to(self.config), difference.added, difference.dropped
        source = _source_of(new.policy.file)
        for process in self._processes:
            if process.pid:
                await process.began.wait()
        ready, self._num_asked = [p for p in self._processes if p.is_ready], self._num_asked + 1
        number = self._num_asked
        await prepare(ready, Prepare(number, new, [*added], [*dropped], source))
        self.config, self._policy_source, self._generation = new, source, number
        self._configured = [_normal(spec) for spec in specs_of(new)]
        self._workers = [*[spec for spec in self._workers if spec not in (*added, *dropped)], *added]
        change(ready, number)

    async def reload_keys(self) -> None:
        """Reload the keys here and in all processes; each logs its errors."""
        if not has_keys(self.config):
            return
        question = AdminRequest("POST", "/admin/keys/reload", b"{}", {"Content-Type": "application/json"})
        for process in self._alive():
            with contextlib.suppress(OSError):  # it is dying: the next one reads the file as it is
                await process.ask(question)
        with contextlib.suppress(ConfigError):
            await self._keeper.reload()

    async def leave(self, seconds: float, stop: asyncio.Event) -> bool:
        """Drain after another gateway has taken over: finish open requests, for so long or until `stop`.
        Returns False if some are left, for `stop` to end."""
        self._is_ending = self._is_leaving = True
        await self._stop_listening()
        self._drain(Drain(seconds, is_leaving=True))
        return await self._all_ended(seconds + KILL_AFTER_S, stop)

    async def stop(self, drain_s: float | None = None) -> None:
        """Stop accepting, let requests finish until the deadline, end every process."""
        self._is_ending = True
        await self._stop_listening()
        seconds = self.config.server.drain_timeout_s if drain_s is None else drain_s
        self._drain(Drain(seconds, is_leaving=False))
        if not await self._all_ended(seconds + KILL_AFTER_S, asyncio.Event()):
            for process in self._processes:
                if process.pid:
                    log.error("process %d (pid %d) did not stop in time: killed", process.row, process.pid)
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(process.pid, signal.SIGKILL)
            await self._all_ended(KILL_AFTER_S, asyncio.Event())
        if hasattr(self, "_admin_runner"):
            await self._admin_runner.cleanup()
        await self._tasks.stop()
        os.close(self._memory)

    # connections -------------------------------------------------------------------------------

    def _accept(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def _taker(self) -> Callable[[int], None] | None:
        """Function that takes a connection, of the process with the fewest; None if none can."""
        process = min((p for p in self._processes if p.is_ready), key=self._burden, default=None)
        return process.take if process else None

    def _fewest_clients(self) -> int:
        """Fewest open connections of a process: all have the same limit of open files."""
        return min((self._num_open(p) for p in self._processes if p.is_ready), default=0)

    def _num_open(self, process: Process) -> int:
        return process.num_sent - self._table.num_closed(process.row)

    def _burden(self, process: Process) -> tuple[bool, int, int]:
        assert process.channel is not None
        return process.channel.is_full, self._num_open(process), process.num_sent

    async def _stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []
        if self._admin_site and self._is_leaving:
            await self._admin_site.stop()
            self._admin_site = None

    # processes ---------------------------------------------------------------------------------

    def _alive(self) -> list[Process]:
        """Live processes, ready ones first."""
        return sorted((p for p in self._processes if p.is_alive), key=lambda p: not p.is_ready)

    async def _spawn(self, process: Process, warm_up_s: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            started = await asyncio.create_subprocess_exec(
                *(*COMMAND, "process", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        process.channel = Channel(ours, partial(self._on_message, process), lambda: None)
        process.pid, process.started_at = started.pid, time.monotonic()
        process.is_leaving, process.num_sent, process.refusal = False, 0, None
        process.generation = self._generation
        process.began.clear()
        config = with_specs(self.config, self._workers)
        drains = drains_of(self._workers)
        begin = Begin(config, process.row, self._num_rows, warm_up_s, self._policy_source, drains)
        process.channel.send(encode(begin), [os.dup(self._memory)])
        self._tasks.start(f"watch process {process.row}", self._watch(process, started))

    def _on_message(self, process: Process, message: bytes, files: list[int]) -> None:
        match decode_to_supervisor(message):
            case Ready() if process.generation != self._generation:
                os.kill(process.pid, signal.SIGKILL)  # it began with what was changed meanwhile
            case Prepared(refusal):
                answered(process, refusal)
            case Ready():
                log.info("process %d (pid %d) is ready", process.row, process.pid)
                process.is_ready = not self._is_ending
                process.began.set()
                self._accept()
            case ConfigRejected(reason):
                process.refusal = reason
            case RelayedReport():
                for other in self._processes:
                    if other is not process:
                        other.send(message)
            case Reported(origin):
                self._processes[origin].send(message)
            case DrainNotice():
                process.is_ready, process.is_leaving = False, True
                if process.channel:
                    drain = Drain(self.config.server.drain_timeout_s, is_leaving=True)
                    process.channel.send(encode(drain))

    async def _watch(self, process: Process, started: asyncio.subprocess.Process) -> None:
        """Watch a process from its start to its end, and start its replacement."""
        code = await started.wait()
        pid, process.pid, process.is_ready = process.pid, 0, False
        answered(process, None)
        if process.channel:
            process.channel.close()
            process.channel = None
        self._table.release(process.row)
        self._used.release(process.row)
        self._aggregate.gone(process.row)
        process.began.set()
        if self._has_started and not self._is_ending:
            await self._replace(process, pid, how_it_ended(code))
        elif code and not process.refusal:
            log.error("process %d (pid %d): ended: %s", process.row, pid, how_it_ended(code))

    async def _replace(self, process: Process, pid: int, how: str) -> None:
        if process.is_leaving:
            log.warning("process %d (pid %d): stopped by a signal; replacing it", process.row, pid)
        else:
            log.error(
                "process %d (pid %d): died (%s); its requests failed, its bookings are released",
                process.row,
                pid,
                process.refusal or how,
            )
        process.num_restarts += 1
        was_quick = time.monotonic() - process.started_at < QUICK_DEATH_S
        process.num_quick_deaths = process.num_quick_deaths + 1 if was_quick else 0
        if delay_s := restart_delay_s(process.num_quick_deaths):
            log.warning("process %d: died soon after its start; replacing it in %g s", process.row, delay_s)
            await asyncio.sleep(delay_s)
        while not self._is_ending:
            try:
                return await self._spawn(process, WARM_UP_S)
            except OSError as exc:
                log.error("process %d: start failed, retrying: %s", process.row, exc)
                await asyncio.sleep(LONGEST_DELAY_S)

    def _drain(self, drain: Drain) -> None:
        for process in self._processes:
            if process.channel and process.has_begun:
                process.channel.send(encode(drain))
            elif process.pid:
                os.kill(process.pid, signal.SIGKILL)  # it is starting still: it has no requests

    async def _all_ended(self, seconds: float, stop: asyncio.Event) -> bool:
        deadline = time.monotonic() + seconds
        while any(process.pid for process in self._processes):
            if time.monotonic() >= deadline or stop.is_set():
                return False
            await asyncio.sleep(0.02)
        return True

    async def _note_workers(self) -> None:
        """Note the workers in the fleet, for processes that start later."""
        for process in self._alive():
            try:
                reply = await process.ask(AdminRequest("GET", "/admin/workers"))
                answer = msgspec.json.decode(reply.body)
                each = [*[e for e in answer["endpoints"] if not e["is_discovered"]], *answer["sources"]]
                self._workers = [*[e["spec"] for e in each], *answer["drains"]]
                return
            except (OSError, msgspec.DecodeError, KeyError, TypeError) as exc:
                log.warning("process %d: list of workers not available: %s", process.row, exc)
