"""A process's open files, shared out: clients may not take those that all else needs. Pure.

    0 ............................................................................. limit
    | the process, clients and their workers                  | workers | admin, probes |
                                          clients_end --------^         ^---- workers_end

The system gives the lowest free number to each new file, so that a number says how many are open. Each
request needs a file for its client and one for its worker: clients get half of what the process leaves.
"""

from dataclasses import dataclass

FILES_PER_REQUEST = 2
"""A client's connection and a worker's."""
OWN_FILES = 32
"""Of the process itself: its loop, its libraries, its sockets, its log."""
MIN_KEPT, MAX_KEPT = 24, 300
MAX_CALLS = 100


@dataclass(frozen=True, slots=True)
class Descriptors:
    """`limit` is the process's soft limit of open files."""

    limit: int

    @property
    def num_kept(self) -> int:
        """Files that are kept for the admin port, probes and events; and as many for workers."""
        return min(max(self.limit // 16, MIN_KEPT), MAX_KEPT)

    @property
    def max_calls(self) -> int:
        """Control calls at once of one kind: probes, /tokenize. The admin port has what is left."""
        return min(self.num_kept // 3, MAX_CALLS)

    @property
    def max_clients(self) -> int:
        return max((self.limit - OWN_FILES - self.num_kept) // FILES_PER_REQUEST, 1)

    @property
    def clients_end(self) -> int:
        """A client's connection with this number or a higher one is the last until others end."""
        return self.limit - 2 * self.num_kept

    @property
    def workers_end(self) -> int:
        """A connection to a worker for a request has a lower number."""
        return self.limit - self.num_kept
