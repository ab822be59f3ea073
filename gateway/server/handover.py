"""Upgrade without a lost connection: a new gateway takes the listening sockets over from the running one.

    new                                           old, which listens at the takeover socket
    Hello ───────────────────────────────────────►
          ◄──────────────── Offer, and its listening sockets: for clients, for admins, for takeovers
    starts, probes the workers, catches up        keeps accepting
    accepts; Accepting ──────────────────────────► stops accepting, finishes open requests
          ◄──────────────────────────────── Left: workers that joined it at run time

The sockets are never closed while one of the two has them, so connections not accepted yet wait in the queue.
If the new one ends before it accepts, the old one goes on as before; if the old one ends, the new one has the
sockets all the same. Files of Unix sockets stay where they are; the old one removes those that the new one
has not kept. The takeover socket is handed over like the others, so that the next upgrade finds the new one
while the old one still finishes its streams.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.core.errors import ConfigError
from gateway.server.fd_channel import Channel
from gateway.server.socket_set import SocketSpec

log = logging.getLogger("kvgate.takeover")

ANSWER_TIMEOUT_S = 10.0
"""Timeout of the other side's answer, which comes between two requests."""


class Hello(msgspec.Struct, tag=True):
    pid: int


class Offer(msgspec.Struct, tag=True):
    """Listening sockets offered for a take-over: `sockets` describes each of the files; `workers` joined at
    run time."""

    pid: int
    sockets: list[SocketSpec]
    workers: list[str]


class Busy(msgspec.Struct, tag=True):
    """Answer while another gateway is taking over."""

    pid: int


class Accepting(msgspec.Struct, tag=True):
    """Announcement that the new gateway accepts; `kept` are the offered sockets that it keeps
    listening at."""

    kept: list[SocketSpec]


class Left(msgspec.Struct, tag=True):
    workers: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hello | Offer | Busy | Accepting | Left).decode


class Predecessor:
    """Running gateway as the new one sees it: its offer, and the end of its accepting."""

    def __init__(self, sock: socket.socket) -> None:
        self.sockets: dict[SocketSpec, socket.socket] = {}
        self._offer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._left: asyncio.Future[Left | None] = asyncio.get_running_loop().create_future()
        self._channel = Channel(sock, self._on_message, self._on_end)
        self._channel.send(_encode(Hello(os.getpid())))

    @classmethod
    async def reach(cls, path: str) -> "Predecessor | None":
        """Connect to the running gateway; None if there is none. Raises ConfigError for an invalid answer."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)  # a socket of this host: there at once, or not
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        except OSError as exc:
            sock.close()
            raise ConfigError(f"takeover_socket: cannot connect to {path}: {exc.strerror or exc}") from exc
        predecessor = cls(sock)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.shield(predecessor._offer)
        except TimeoutError:
            predecessor.close()
            raise ConfigError(f"takeover_socket: no answer from the process at {path}") from None
        return predecessor

    @property
    def pid(self) -> int:
        return self._offer.result().pid

    @property
    def workers(self) -> list[str]:
        return self._offer.result().workers

    async def take_over(self, kept: Collection[SocketSpec]) -> list[str]:
        """Announce that this gateway accepts from now on. Returns the old gateway's workers by then; none if
        it has ended meanwhile."""
        self._channel.send(_encode(Accepting(list(kept))))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                left = await self._left
        except TimeoutError:
            log.warning("process %d did not confirm that it stopped accepting", self.pid)
            left = None
        self.close()
        return left.workers if left else []

    def close(self) -> None:
        self._channel.close()

    def _on_message(self, message: bytes, files: list[int]) -> None:
        match _decode(message):
            case Offer() as offer:
                for spec, file in zip(offer.sockets, files, strict=True):
                    self.sockets[spec] = socket.socket(fileno=file)
                self._offer.set_result(offer)
            case Busy(pid):
                self._refuse(f"process {pid} is taking over; retry")
            case Left() as left:
                self._left.set_result(left)
            case _:
                pass

    def _on_end(self) -> None:
        self._refuse("the running gateway has just ended; retry")
        if not self._left.done():
            self._left.set_result(None)

    def _refuse(self, why: str) -> None:
        if not self._offer.done():
            self._offer.set_exception(ConfigError(f"takeover_socket: {why}"))


class TakeoverPoint:
    """Takeover socket of a running gateway. `taken` is set when the next one accepts in its place."""

    def __init__(
        self,
        listening: socket.socket,
        sockets: Mapping[SocketSpec, socket.socket],
        workers: Callable[[], list[str]],
    ) -> None:
        """Listen for the next gateway; `sockets` are those to hand over, `listening` among them."""
        self.taken = asyncio.Event()
        self.successor = 0
        self.kept: Collection[SocketSpec] = ()
        self._listening = listening
        self._sockets = sockets
        self._workers = workers
        self._channel: Channel | None = None
        self._newcomers: set[Channel] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def has_heir(self) -> bool:
        """True if another gateway has the sockets too, and may accept even if this one ends now."""
        return self._channel is not None

    def close(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        for channel in list(self._newcomers):
            channel.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return  # the connection is gone again
        self._newcomers.add(_Newcomer(sock, self).channel)

    def hello(self, channel: Channel, pid: int) -> None:
        if self._channel:
            channel.send(_encode(Busy(self.successor)))
            self._newcomers.discard(channel)
            return channel.close()
        self._channel, self.successor = channel, pid
        log.info("process %d begins to take over", pid)
        files = [os.dup(sock.fileno()) for sock in self._sockets.values()]
        return channel.send(_encode(Offer(os.getpid(), list(self._sockets), self._workers())), files)

    def accepting(self, channel: Channel, kept: Collection[SocketSpec]) -> None:
        if channel is self._channel:
            self.kept = kept
            channel.send(_encode(Left(self._workers())))
            self.taken.set()

    def ended(self, channel: Channel) -> None:
        self._newcomers.discard(channel)
        if channel is self._channel and not self.taken.is_set():
            self._channel = None
            log.warning("process %d ended before taking over; continuing", self.successor)


class _Newcomer:
    """Gateway that has connected to the takeover socket."""

    def __init__(self, sock: socket.socket, point: TakeoverPoint) -> None:
        self._point = point
        self.channel = Channel(sock, self._on_message, lambda: point.ended(self.channel))

    def _on_message(self, message: bytes, files: list[int]) -> None:
        try:
            message_in = _decode(message)
        except msgspec.DecodeError as exc:
            log.warning("takeover socket: closing a connection with an invalid message: %s", exc)
            self.channel.close()
            return self._point.ended(self.channel)
        match message_in:
            case Hello(pid):
                self._point.hello(self.channel, pid)
            case Accepting(kept):
                self._point.accepting(self.channel, kept)
            case _:
                pass
        return None
