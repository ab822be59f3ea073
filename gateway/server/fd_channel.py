"""Message channel between two processes of one host that can carry open files, in order, until one of them
ends.

    frame = length of the message, number of files │ message

A stream of frames rather than datagrams: a queue of datagrams may be as short as ten. The kernel hands files
over with the first byte of the write that carried them, so they arrive in the order of their frames. Nothing
blocks: frames that do not fit wait here, with their files.
"""

import array
import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger("kvgate.channel")

_HEAD = struct.Struct("=IB")
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
MAX_FILES = 16
LOST = -1
"""Placeholder of a file that could not be received."""
READS_AT_ONCE = 64
"""Reads before other work gets the loop."""


@dataclass(slots=True, eq=False)
class _Frame:
    data: memoryview
    files: Sequence[int]


class Channel:
    """End of a channel. `on_message` gets each message and its files, which it must close; `on_end` is
    called once the other end is closed, or its process dead."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[bytes, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._waiting: deque[_Frame] = deque()
        self._read_bytes = bytearray()
        self._read_files: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def __repr__(self) -> str:
        return f"Channel({'closed' if self.is_closed else 'open'}, waiting={len(self._waiting)})"

    @property
    def is_closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def is_full(self) -> bool:
        """True if the other end is slow, so that messages wait."""
        return bool(self._waiting)

    def send(self, message: bytes, files: Sequence[int] = ()) -> None:
        """Send a message. The channel owns the files: it closes them when they are sent, or cannot be."""
        frame = _Frame(memoryview(_HEAD.pack(len(message), len(files)) + message), files)
        if self.is_closed:
            return _close(files)
        self._waiting.append(frame)
        if len(self._waiting) == 1:
            self._writable()
        return None

    def close(self) -> None:
        """Close the channel and drop waiting messages."""
        if self.is_closed:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for frame in self._waiting:
            _close(frame.files)
        self._waiting.clear()
        _close(self._read_files)
        self._read_files.clear()

    def _writable(self) -> None:
        while self._waiting:
            frame = self._waiting[0]
            try:
                num = self._write(frame)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._writable)
                return
            except OSError as exc:
                if exc.errno != errno.ETOOMANYREFS:
                    return self._end()
                log.error("connection dropped: too many open files in transit between processes")
                num = len(frame.data)
            _close(frame.files)
            if num < len(frame.data):
                self._waiting[0] = _Frame(frame.data[num:], ())
            else:
                self._waiting.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _write(self, frame: _Frame) -> int:
        if not frame.files:
            return self._sock.send(frame.data)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", frame.files))
        return self._sock.sendmsg([frame.data], [rights])

    def _readable(self) -> None:
        for _ in range(READS_AT_ONCE):
            if self.is_closed:
                return
            try:
                data, files, flags, _ = socket.recv_fds(self._sock, 1 << 16, MAX_FILES, _FLAGS)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, files = b"", []
            if not data:
                return self._end()
            self._read_bytes += data
            self._read_files.extend(files)
            if flags & socket.MSG_CTRUNC:  # this process has no number left for a received file
                log.error("connection dropped: this process is out of open files")
                self._read_files.append(LOST)
            self._deliver()
        return

    def _deliver(self) -> None:
        while len(self._read_bytes) >= _HEAD.size and not self.is_closed:
            length, num_files = _HEAD.unpack_from(self._read_bytes)
            end = _HEAD.size + length
            if len(self._read_bytes) < end:
                return
            if num_files > len(
                self._read_files
            ):  # files come with a frame's first byte: this frame is not ours
                return self._end()
            message = bytes(self._read_bytes[_HEAD.size : end])
            del self._read_bytes[:end]
            self._on_message(message, [self._read_files.popleft() for _ in range(num_files)])

    def _end(self) -> None:
        self.close()
        self._on_end()


def _close(files: Sequence[int] | deque[int]) -> None:
    for file in (file for file in files if file != LOST):
        with contextlib.suppress(OSError):
            os.close(file)
