"""Limit of client connections: a process without free files can serve neither clients nor the admin port."""

import logging
import os
from collections.abc import Callable

from gateway.runtime.descriptors import Descriptors
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate")


class ClientLimit:
    """Client limit. `num_open` counts connected clients, `clock` is in seconds."""

    def __init__(
        self, descriptors: Descriptors, num_open: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._descriptors = descriptors
        self._num_open = num_open
        self._is_tight = False
        self._rate_limited = RateLimitedLog(log, clock=clock)

    def __repr__(self) -> str:
        return f"ClientLimit({self._num_open()} of {self._descriptors.max_clients}, tight={self._is_tight})"

    def has_one(self) -> bool:
        """Return True if one more client may be accepted now; logs if not."""
        if self._is_tight:
            self._is_tight = not self._can_open()
        if not self._is_tight and self._num_open() < self._descriptors.max_clients:
            return True
        self._log()
        return False

    def took(self, file: int) -> None:
        """Record an accepted connection's file number, which shows how many files are open."""
        self._is_tight = file >= self._descriptors.clients_end

    def _can_open(self) -> bool:
        try:
            lowest_free = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return False
        os.close(lowest_free)
        return lowest_free < self._descriptors.clients_end

    def _log(self) -> None:
        self._rate_limited.warning(
            "new clients wait: the rest of %d open files is reserved for workers, probes and the admin port "
            "(%d connections are open); raise the limit (ulimit -n, LimitNOFILE=, nofile)",
            self._descriptors.limit,
            self._num_open(),
        )
