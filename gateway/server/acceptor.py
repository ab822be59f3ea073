"""Acceptor of the connections of one listening socket."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.server.client_limit import ClientLimit

log = logging.getLogger("kvgate.processes")

ACCEPTS_AT_ONCE = 64
FULL_PAUSE_S = 0.05
"""Pause when there is no room for clients."""
PAUSE_S = 0.5
"""Pause of accepting when the host is out of open files."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections and hands each to the function that `taker` returns; while that is None, clients
    wait in the socket's queue until `start` is called again. Without `room` there is no bound."""

    def __init__(
        self,
        listening: socket.socket,
        taker: Callable[[], Callable[[int], None] | None],
        room: ClientLimit | None = None,
    ) -> None:
        self._listening = listening
        self._taker = taker
        self._room = room
        self._log = RateLimitedLog(log)
        self._is_accepting = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        if not self._is_accepting and self._listening.fileno() >= 0:
            self._is_accepting = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listening.fileno())

    def close(self) -> None:
        """Stop accepting; waiting connections stay in the queue, if another process has the socket too."""
        self.pause()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._room and not self._room.has_one():
                return self._pause(FULL_PAUSE_S)
            take = self._taker()
            if take is None:
                return self.pause()
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return None
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                text = "cannot accept connections (%s), retrying every %g s"
                self._log.error(text, exc.strerror, PAUSE_S)
                return self._pause(PAUSE_S)
            file = connection.detach()
            if self._room:
                self._room.took(file)
            take(file)
        return None

    def _pause(self, seconds: float) -> None:
        self.pause()
        self._loop.call_later(seconds, self.start)
