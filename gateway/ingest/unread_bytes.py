"""Bounds on the bytes that libzmq has received and that are still unread, for each connection and for all.

libzmq's high-water mark counts whole messages, however large they are, and a message without an end not at
all: its parts are kept until the last one comes. The kernel counts the bytes that a connection has brought
(TCP_INFO); what exceeds the messages read waits in libzmq, or in the kernel's buffer. Unix sockets and other
systems than Linux have no such count.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import zmq

from gateway.ingest.sockets import SocketReader

MAX_BYTES = 128 << 20
"""Unread bytes per connection: a full queue of the largest messages (64 MiB), and the host's buffers."""
MAX_ALL_BYTES = 512 << 20
"""Unread bytes of all connections: beyond, those with the most are ended, until the others fit."""
LOOK_S = 0.1
"""A look takes a microsecond or two for each connection."""
EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
"""Events of a socket's monitor that `Wire.saw` needs."""

_TCP_INFO_BYTES = 136
_BYTES_RECEIVED = 128
"""Where `tcpi_bytes_received` lies in `struct tcp_info` (Linux 4.1 and newer)."""


class Wire:
    """The connection of one socket, and those that follow it. `on_excess` gets the bytes that wait."""

    def __init__(self, reader: SocketReader, on_excess: Callable[[int], None]) -> None:
        self._reader = reader
        self.on_excess = on_excess
        self._sock: socket.socket | None = None
        self._before = 0  # bytes that connections before this one have brought
        self._is_ended = False

    def __repr__(self) -> str:
        return f"Wire({self.num_waiting} bytes wait)"

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def num_waiting(self) -> int:
        return self._before + _received(self._sock) - self._reader.num_bytes

    def saw(self, event: int, value: int) -> str | None:
        """An event of the socket's monitor; the peer's address where it is a new connection."""
        if event == zmq.EVENT_DISCONNECTED:
            self._forget()
        if event != zmq.EVENT_CONNECTED:
            return None
        self._forget()
        if not self._reader.has_more:  # parts of a message that has no end any more were dropped
            self._before = self._reader.num_bytes
        with suppress(OSError):  # it may be closed again by now
            self._sock = socket.socket(fileno=os.dup(value))
            if self._sock.family in (socket.AF_INET, socket.AF_INET6):
                peer = str(self._sock.getpeername()[0])
                if self._is_ended:
                    self.end()
                return peer
        self._forget()
        return None

    def end(self) -> None:
        """Nothing more comes; whole messages that wait can be read."""
        self._is_ended = True
        if self._sock:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._forget()

    def _forget(self) -> None:
        """A descriptor that was duplicated keeps a connection open."""
        if self._sock:
            self._before += _received(self._sock)
            self._sock.close()
            self._sock = None

    close = _forget


class Wires:
    """All connections of a loop."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_all_bytes: int = MAX_ALL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_all_bytes = max_all_bytes
        self._wires: set[Wire] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Wires({len(self._wires)} connections)"

    def open(self, reader: SocketReader, on_excess: Callable[[int], None]) -> Wire:
        wire = Wire(reader, on_excess)
        self._wires.add(wire)
        if self._timer is None:
            self._look_later()
        return wire

    def close(self, wire: Wire) -> None:
        wire.close()
        self._wires.discard(wire)
        if not self._wires and self._timer:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._look_later()
        sizes = {wire: wire.num_waiting for wire in self._wires}
        total = sum(sizes.values())
        for wire in sorted((wire for wire in sizes if wire.is_open), key=sizes.__getitem__, reverse=True):
            if sizes[wire] <= self._max_bytes and total <= self._max_all_bytes:
                return
            total -= sizes[wire]
            if wire in self._wires:  # else it was closed with the one before
                wire.on_excess(sizes[wire])


def _received(sock: socket.socket | None) -> int:
    if sock is None or sys.platform != "linux":
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]) if len(info) >= _TCP_INFO_BYTES else 0
