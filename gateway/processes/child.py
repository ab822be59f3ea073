"""Child process of a supervisor: a gateway that receives its connections over a channel.

It listens to nothing. The supervisor (`supervisor.py`) accepts, and passes each connection's open file to the
process with the fewest; admin requests of the host reach it the same way. Its bookings are in shared memory.
When the channel to the supervisor ends, no more connections can come: it finishes open requests and ends, so
that no process outlives a supervisor that was killed. TLS is its own: it makes the contexts from the same
files, and shakes hands.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

from gateway.app import Gateway
from gateway.app.component import ConfigChange, Swap
from gateway.app.gateway_parts import Surroundings
from gateway.bookings import shared_memory
from gateway.bookings.shared_ledger import Table
from gateway.core.errors import ConfigError
from gateway.decide.report_relay import ReportRelay
from gateway.observability.log_setup import set_up
from gateway.processes.messages import (
    Begin,
    Change,
    ConfigRejected,
    Drain,
    DrainNotice,
    NewAdminClient,
    NewClient,
    Prepare,
    Prepared,
    Ready,
    RelayedReport,
    Reported,
    decode_to_process,
    encode,
)
from gateway.runtime import process_limits
from gateway.runtime.gc_policy import GcPolicy
from gateway.runtime.runnables import StartFailed
from gateway.runtime.tasks import Tasks
from gateway.server.connection import ClientConnection
from gateway.server.fd_channel import LOST, Channel

log = logging.getLogger("kvgate")


class Connections(set[ClientConnection]):
    """Open connections of this process; closed ones are counted in the shared memory."""

    def __init__(self, table: Table, row: int) -> None:
        super().__init__()
        self._table, self._row = table, row

    def discard(self, connection: object) -> None:
        super().discard(connection)
        self.closed()

    def closed(self) -> None:
        self._table.closed(self._row)


class Child:
    """Life of a child process: `run` begins, serves and finishes. It returns the exit code."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        #  Ctrl-C and a hang-up reach every process of a terminal; the supervisor decides what they mean.
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)
        self._begin: asyncio.Future[tuple[Begin, int] | None] = self._loop.create_future()
        self._early: list[tuple[bool, int]] = []
        self._adopt: Callable[[bool, int], None] = lambda is_client, file: self._early.append(
            (is_client, file)
        )
        self._gateway: Gateway | None = None
        self._changes = Tasks()
        self._swaps: dict[int, Swap] = {}
        self._leave_s: float | None = None
        self._stop_s: float | None = None
        self._finish = asyncio.Event()
        self._stop = asyncio.Event()
        self._channel = Channel(sock, self._on_message, self._on_end)
        self._row = 0
        self._reports = ReportRelay(self._pass_on, self._loop)

    async def run(self) -> int:
        begun = await self._begin
        if begun is None:
            return 0  # the supervisor is gone already
        begin, memory = begun
        self._row = begin.row
        sink = set_up(begin.config.log.level, begin.config.log.format, begin.row)
        place = shared_memory.view_beside(begin.config, memory, begin.row, begin.num_rows)
        connections = Connections(place.table, begin.row)
        try:
            surroundings = Surroundings(place, connections, begin.policy_source, sink, self._reports)
            gateway = Gateway(begin.config, surroundings)
        except ConfigError as exc:
            self._channel.send(encode(ConfigRejected(str(exc))))
            return 2
        process_limits.prepare()
        garbage = GcPolicy(gateway.metrics.gc_pause_s.observe)
        garbage.settle()
        try:
            await gateway.start(serve=False)
            gateway.parts.lifecycle.lifecycle.resume(begin.drains, gateway.roster)
            await self._serve(gateway, begin, connections)
        except ConfigError as exc:
            self._channel.send(encode(ConfigRejected(str(exc))))
            return 2
        except StartFailed as exc:
            self._channel.send(encode(ConfigRejected(str(exc))))
            if isinstance(exc.__cause__, OSError):
                return 1
            raise  # a mistake of the program: show where
        finally:
            await gateway.stop(self._stop_s or 0.0)
            garbage.release()
            self._channel.close()
        return 0

    async def _serve(self, gateway: Gateway, begin: Begin, connections: Connections) -> None:
        """Serve until it has to stop, which it then does within `_stop_s`."""
        self._heed_stop()
        front = gateway.parts.front_door.listener

        def adopt(is_client: bool, file: int) -> None:
            if file == LOST:
                return connections.closed() if is_client else None
            if is_client:
                front.take_client(file, connections.closed)
            else:
                front.take_admin(file)

        self._gateway = gateway
        self._adopt = adopt
        for early in self._early:
            adopt(*early)
        await gateway.warm_up(begin.warm_up_s)
        self._channel.send(encode(Ready()))
        await self._finish.wait()
        if self._leave_s is not None and not self._stop.is_set():
            await gateway.leave(self._leave_s, self._stop)
        if self._stop.is_set() and self._stop_s is None:
            self._stop_s = begin.config.server.drain_timeout_s

    def _on_message(self, message: bytes, files: list[int]) -> None:
        match decode_to_process(message):
            case Begin() as begin:
                self._begin.set_result((begin, files[0]))
            case NewClient():
                self._adopt(True, files[0])
            case NewAdminClient():
                self._adopt(False, files[0])
            case Prepare() as prepare:
                self._changes.start("prepare", self._prepare(prepare))
            case Change(number):
                if number in self._swaps:
                    self._swaps.pop(number)()
            case RelayedReport(origin, number, report):
                result = self._reports.apply(report)
                if result is not None:
                    self._channel.send(encode(Reported(origin, number, result)))
            case Reported(_, number, result):
                self._reports.answered(number, result)
            case Drain(seconds, is_leaving):
                if is_leaving:
                    self._leave_s = seconds
                else:
                    self._stop_s = seconds
                    self._stop.set()
                self._finish.set()

    def _pass_on(self, number: int, report: bytes) -> None:
        self._channel.send(encode(RelayedReport(self._row, number, report)))

    async def _prepare(self, asked: Prepare) -> None:
        """Prepare a configuration. Only the latest is kept: an earlier one without a change was rejected
        elsewhere."""
        self._swaps.clear()
        assert self._gateway is not None, "only a process that is ready is asked"
        try:
            change = ConfigChange(asked.config, asked.added, asked.dropped, asked.policy_source)
            swap = await self._gateway.prepare(change)
        except ConfigError as exc:
            return self._channel.send(encode(Prepared(str(exc))))
        self._swaps[asked.number] = swap
        return self._channel.send(encode(Prepared()))

    def _on_end(self) -> None:
        """Stop after the loss of the supervisor. Its last order stands: a draining process goes on
        draining."""
        if not self._begin.done():
            self._begin.set_result(None)
        if self._leave_s is None:
            self._stop.set()
        self._finish.set()

    def _heed_stop(self) -> None:
        """Handle a signal to this process alone: it requests no more connections, and drains after the last
        one."""
        self._loop.add_signal_handler(signal.SIGTERM, lambda: self._channel.send(encode(DrainNotice())))


async def serve_child(file: int) -> int:
    """Run `python -m kvgate process FILE`, which only a supervisor starts. Returns the exit code."""
    return await Child(socket.socket(fileno=file)).run()
