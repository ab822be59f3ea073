"""Upgrade without a lost connection: a new gateway takes the listening sockets over from the running one.

    new                                           old, which listens at the takeover socket
    Hello ───────────────────────────────────────►
          ◄──────────────── Offer, and its listening sockets: for clients, for admins, for takeovers
    starts, asks the workers, catches up          goes on accepting
    accepts; Accepting ──────────────────────────► accepts no more, finishes what it has begun
          ◄──────────────────────────────── Left: workers that joined it at run time

The sockets are never closed while one of the two has them, so a connection that nobody has accepted yet
waits for whoever accepts next. If the new one ends before it accepts, the old one goes on as before; if
the old one ends, the new one has the sockets all the same. Files of Unix sockets stay where they are; the
old one removes those that the new one has not kept. The takeover socket changes hands like the
others, so that the next upgrade finds the new one while the old one still finishes its streams.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.core.errors import ConfigError
from gateway.server.fd_channel import Channel
from gateway.server.socket_set import Asked

log = logging.getLogger("kvgate.takeover")

ANSWER_TIMEOUT_S = 10.0
"""For the other side to answer; it does so between two requests."""


class Hello(msgspec.Struct, tag=True):
    pid: int


class Offer(msgspec.Struct, tag=True):
    """`sockets` says what each of the files is. `workers` joined at run time."""

    pid: int
    sockets: list[Asked]
    workers: list[str]


class Busy(msgspec.Struct, tag=True):
    """Another one is taking over just now."""

    pid: int


class Accepting(msgspec.Struct, tag=True):
    """`kept` are those of the offered sockets that the new one goes on listening at."""

    kept: list[Asked]


class Left(msgspec.Struct, tag=True):
    workers: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hello | Offer | Busy | Accepting | Left).decode


class Predecessor:
    """The running gateway, for the new one: what it offers, and how it is told to leave."""

    def __init__(self, sock: socket.socket) -> None:
        self.sockets: dict[Asked, socket.socket] = {}
        self._offer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._left: asyncio.Future[Left | None] = asyncio.get_running_loop().create_future()
        self._channel = Channel(sock, self._on_message, self._on_end)
        self._channel.send(_encode(Hello(os.getpid())))

    @classmethod
    async def reach(cls, path: str) -> "Predecessor | None":
        """None if nobody listens there. Raises ConfigError for somebody who does not answer as it should."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)  # it is a socket of this host: there at once, or not
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
            raise ConfigError(f"takeover_socket: who listens at {path} does not answer") from None
        return predecessor

    @property
    def pid(self) -> int:
        return self._offer.result().pid

    @property
    def workers(self) -> list[str]:
        return self._offer.result().workers

    async def take_over(self, kept: Collection[Asked]) -> list[str]:
        """Tell it that connections are accepted here from now on. The workers that it had by then; none
        if it has ended meanwhile."""
        self._channel.send(_encode(Accepting(list(kept))))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                left = await self._left
        except TimeoutError:
            log.warning("process %d does not say that it accepts no more", self.pid)
            left = None
        self.close()
        return left.workers if left else []

    def close(self) -> None:
        self._channel.close()

    def _on_message(self, message: bytes, files: list[int]) -> None:
        match _decode(message):
            case Offer() as offer:
                for asked, file in zip(offer.sockets, files, strict=True):
                    self.sockets[asked] = socket.socket(fileno=file)
                self._offer.set_result(offer)
            case Busy(pid):
                self._refuse(f"process {pid} is taking over just now; try again")
            case Left() as left:
                self._left.set_result(left)
            case _:
                pass

    def _on_end(self) -> None:
        self._refuse("the running gateway ended just now; try again")
        if not self._left.done():
            self._left.set_result(None)

    def _refuse(self, why: str) -> None:
        if not self._offer.done():
            self._offer.set_exception(ConfigError(f"takeover_socket: {why}"))


class TakeoverPoint:
    """Where the next gateway finds this one. `taken` is set when it accepts in this one's place."""

    def __init__(
        self,
        listening: socket.socket,
        sockets: Mapping[Asked, socket.socket],
        workers: Callable[[], list[str]],
    ) -> None:
        """`sockets` are those to hand over, `listening` among them."""
        self.taken = asyncio.Event()
        self.successor = 0
        self.kept: Collection[Asked] = ()
        self._listening = listening
        self._sockets = sockets
        self._workers = workers
        self._channel: Channel | None = None
        self._newcomers: set[Channel] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening.fileno(), self._accept)

    @property
    def has_heir(self) -> bool:
        """Another gateway has the sockets too, and may accept even if this one ends now."""
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
            return  # it is gone again
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

    def accepting(self, channel: Channel, kept: Collection[Asked]) -> None:
        if channel is self._channel:
            self.kept = kept
            channel.send(_encode(Left(self._workers())))
            self.taken.set()

    def ended(self, channel: Channel) -> None:
        self._newcomers.discard(channel)
        if channel is self._channel and not self.taken.is_set():
            self._channel = None
            log.warning("process %d ended before it had taken over; this one goes on", self.successor)


class _Newcomer:
    """A gateway that has connected to the takeover point."""

    def __init__(self, sock: socket.socket, point: TakeoverPoint) -> None:
        self._point = point
        self.channel = Channel(sock, self._on_message, lambda: point.ended(self.channel))

    def _on_message(self, message: bytes, files: list[int]) -> None:
        try:
            told = _decode(message)
        except msgspec.DecodeError as exc:
            log.warning("takeover socket: a connection is closed, it sent no message of ours: %s", exc)
            self.channel.close()
            return self._point.ended(self.channel)
        match told:
            case Hello(pid):
                self._point.hello(self.channel, pid)
            case Accepting(kept):
                self._point.accepting(self.channel, kept)
            case _:
                pass
        return None
