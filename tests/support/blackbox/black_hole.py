"""Port that neither accepts connections nor refuses them."""

import socket

from tests.support.blackbox.scripted_worker import FakeWorker

IDS = [1, 2, 3]


class BlackHole:
    """Port with a full backlog: connections are neither made nor refused."""

    def __init__(self, worker: FakeWorker) -> None:
        self._sockets = [socket.socket() for _ in range(8)]
        listening, *callers = self._sockets
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", worker.port))
        listening.listen(0)
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", worker.port))

    def close(self) -> None:
        for each in self._sockets:
            each.close()
