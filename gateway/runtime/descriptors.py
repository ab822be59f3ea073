"""Sharing out a process's file descriptors: clients may not use up those that everything else needs. Pure.

    0 ............................................................................. limit
    | the process, clients and their workers                  | workers | admin, probes |
                                          clients_end --------^         ^---- workers_end

The system gives the lowest free number to each new file, so that a number shows how many are open. Each
request needs a file for its client and one for its worker: clients get half of what the process leaves.
"""

from dataclasses import dataclass

FILES_PER_REQUEST = 2
"""Files per request: a client's connection and a worker's."""
OWN_FILES = 32
"""Files of the process itself: its loop, libraries, sockets and log."""
MIN_KEPT, MAX_KEPT = 24, 300
MAX_CALLS = 100
MIN_EVENT_SOCKETS, MAX_EVENT_SOCKETS = 1023, 1 << 14
"""Bounds on ZeroMQ sockets; the first is the library's own default."""
SOCKETS_PER_FEED = 6
"""ZeroMQ sockets of a rank's events during a replay: one for each of the two, with a monitor of two ends."""
MAX_FEEDS = 256
"""Ranks of one endpoint that are followed at most."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Shares of a process's files. `limit` is its soft limit of open files."""

    limit: int

    @property
    def num_kept(self) -> int:
        """Files reserved for the admin port, probes and events; and as many for workers."""
        return min(max(self.limit // 16, MIN_KEPT), MAX_KEPT)

    @property
    def max_calls(self) -> int:
        """Control calls at once of one kind (probes, /tokenize). The admin port has the rest."""
        return min(self.num_kept // 3, MAX_CALLS)

    @property
    def num_event_sockets(self) -> int:
        """ZeroMQ sockets for the events of all workers."""
        return min(max(self.limit // 2, MIN_EVENT_SOCKETS), MAX_EVENT_SOCKETS)

    @property
    def max_feeds(self) -> int:
        """Ranks of one endpoint that are followed: a quarter of the sockets, at most."""
        return min(self.num_event_sockets // (4 * SOCKETS_PER_FEED), MAX_FEEDS)

    @property
    def max_clients(self) -> int:
        return max((self.limit - OWN_FILES - self.num_kept) // FILES_PER_REQUEST, 1)

    @property
    def clients_end(self) -> int:
        """File number from which a client's connection is the last one until others close."""
        return self.limit - 2 * self.num_kept

    @property
    def workers_end(self) -> int:
        """File number that connections to workers for requests must stay below."""
        return self.limit - self.num_kept
