"""gRPC connections on the event loop: one protocol each, no task, no queue of its own.

    first bytes ─► served ─► drained: GOAWAY, last stream ends ─► closed
      │ 10 s, or no HTTP/2: closed and logged        │ silent for 60 s: PING; no answer in 20 s: aborted

Output is written as far as the socket takes it; while it is full, streams keep theirs, and slow ones are not
read from. What is received is handed out in turns of a slice, and nothing is read meanwhile: a read may be
256 KiB of frames and messages that each cost some µs.
"""

import asyncio
from collections.abc import Callable, MutableSet
from typing import Final, cast

from gateway.server.body_budget import BodyBudget
from gateway.server.http2.frames import PREFACE
from gateway.server.http2.grpc_connection import GrpcConnection
from gateway.server.http2.limits import Http2Limits
from gateway.server.http2.service import Services

FIRST_BYTES_S: Final = 10.0
SILENCE_S: Final = 60.0
PONG_S: Final = 20.0
DRAIN_PONG_S: Final = 1.0
"""Time for the answer to a draining connection's PING; then the second GOAWAY is sent all the same."""
HIGH_WATER: Final = 262144
FULL_READ_BYTES: Final = 128 << 10
"""Larger reads may have filled their buffer; libuv then reads up to 32 times before it polls others again."""
ALIVE: Final = b"kvgalive"

OnFault = Callable[[str, bytes, str], None]
"""Gets a peer's address, its first bytes, and why its connection was ended."""


class GrpcProtocol(asyncio.Protocol):
    """Connection of a client, in `registry` while it is open."""

    def __init__(
        self,
        services: Services,
        limits: Http2Limits,
        bodies: BodyBudget,
        registry: MutableSet["GrpcProtocol"],
        on_fault: OnFault,
        peer: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._grpc = GrpcConnection(services, limits, bodies, self._loop.call_later, self._flush_soon)
        self._registry = registry
        self._on_fault = on_fault
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._is_full = self._is_flushing = self._is_draining = False
        self._has_turn = False
        self._read_at_s = self._loop.time()
        self._num_pings = 0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"GrpcProtocol({self._peer}, {self._grpc})"

    @property
    def num_streams(self) -> int:
        return len(self._grpc.http2.streams)

    # transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._registry.add(self)
        self._timer = self._loop.call_later(FIRST_BYTES_S, self._check)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._read_at_s = now = self._loop.time()
        if self._has_turn:  # a transport may give what it had read before it was paused
            self._grpc.http2.feed(data, now)
            return
        self._grpc.receive(data, now)
        if (self._grpc.has_rest or len(data) > FULL_READ_BYTES) and self._transport is not None:
            self._has_turn = True
            self._transport.pause_reading()
            self._loop.call_soon(self._turn)
        self._flush()

    def _turn(self) -> None:
        """Hand out more of what was read; read on once nothing of it is left."""
        if self._transport is None or self._transport.is_closing():
            return
        self._grpc.hand_out()
        if self._grpc.has_rest:
            self._loop.call_soon(self._turn)
        else:
            self._has_turn = False
            self._transport.resume_reading()
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._registry.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._grpc.close("the connection is lost")

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    # output ------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write once for all that handlers send in this iteration of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        http2, transport = self._grpc.http2, self._transport
        if transport is None:
            return
        while not self._is_full and (data := http2.take()):
            transport.write(data)
        if http2.is_over and not self._is_full:
            self._end(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Close a connection that is drained, or has failed."""
        fault = self._grpc.http2.fault
        if fault is not None and not transport.is_closing():
            self._on_fault(self._peer, self._grpc.http2.first_bytes, fault.message)
        transport.close()

    # time --------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Close a connection that has not begun, and ask one that is silent for a sign of life."""
        http2, now = self._grpc.http2, self._loop.time()
        silent_s = now - self._read_at_s
        if self._transport is None:
            return
        if len(http2.first_bytes) < len(PREFACE):
            self._on_fault(self._peer, http2.first_bytes, f"no HTTP/2 preface within {FIRST_BYTES_S:g} s")
            return self._transport.abort()
        if silent_s < SILENCE_S:
            self._num_pings = 0
            self._timer = self._loop.call_later(SILENCE_S - silent_s, self._check)
        elif self._num_pings == 0:
            self._num_pings = 1
            http2.ping(ALIVE)
            self._flush()
            self._timer = self._loop.call_later(PONG_S, self._check)
        else:
            self._on_fault(self._peer, b"", "silent: no answer to PING")
            self._transport.abort()
        return None

    def leave(self) -> None:
        """Announce the end: open streams finish, new ones go elsewhere. May be called again."""
        if self._is_draining:
            return
        self._is_draining = True
        self._grpc.http2.drain()
        self._loop.call_later(DRAIN_PONG_S, self._finish_drain)
        self._flush()

    def _finish_drain(self) -> None:
        self._grpc.http2.finish_drain()
        self._flush()

    def abort(self) -> None:
        """End what is left, with its calls."""
        self._grpc.abort("the server stops")
        if self._transport is not None:
            self._transport.abort()
