"""Memory shared by the processes of one host, as an open file that child processes inherit.

It has no name, so it is gone with the last process that uses it. Where hosts share bookings, a process alone
has such memory too.
"""

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from gateway.bookings.shared_assumed import SharedAssumedIndex
from gateway.bookings.shared_ledger import Lock, SharedLedger, Table
from gateway.bookings.tenant_usage import QuotaTable, QuotaUsage
from gateway.config import Config
from gateway.core.errors import ConfigError


class ProcessView:
    """View that one process has of the shared table. `far_row` is that of other hosts, if they publish;
    `become_subscriber` returns True if this process is the host's subscriber."""

    def __init__(
        self,
        table: Table,
        row: int,
        far_row: int | None = None,
        *,
        host_lock: Lock = nullcontext,
        become_subscriber: Callable[[], bool] = lambda: True,
        used: QuotaTable | None = None,
    ) -> None:
        self.table = table
        self.far_row = far_row
        self.become_subscriber = become_subscriber
        self.ledger = SharedLedger(table, row, host_lock, far_row)
        self.assumed = SharedAssumedIndex(table, row)
        self._row = row
        self._used = used

    @property
    def is_first(self) -> bool:
        """True for one of the host's processes."""
        return self._row == 0

    def quota_usage(self, tenant: str) -> QuotaUsage | None:
        """Return a tenant's quota usage, of this process and the others."""
        return self._used.of(tenant, self._row) if self._used else None

    def publishes_as(self, gateway: int) -> None:
        """Set the id under which this process publishes to other hosts."""
        self.table.publishes_as(self._row, gateway)


def shares_bookings(config: Config) -> bool:
    """Return True if hosts share their bookings. Raises ConfigError."""
    if config.redis.booking in ("shared", "atomic") and not config.redis.url:
        raise ConfigError(f"booking: {config.redis.booking} needs --redis, the URL of a server")
    return bool(config.redis.url) and config.redis.booking != "own"


def num_rows(config: Config) -> int:
    """Return the rows of the table: one per process, and one for all other hosts."""
    return config.server.processes + shares_bookings(config)


def view_alone(config: Config) -> ProcessView | None:
    """Return the memory of a process without neighbours; None where there are no other hosts."""
    if not shares_bookings(config):
        return None
    return ProcessView(Table(memoryview(bytearray(Table.num_bytes(2))), 2, nullcontext), 0, 1)


def view_beside(config: Config, file: int, row: int, rows: int) -> ProcessView:
    """Return one process's view of the memory that several processes share."""
    far_row = rows - 1 if shares_bookings(config) else None
    return ProcessView(
        table(file, rows),
        row,
        far_row,
        host_lock=lambda: host_lock(file),
        become_subscriber=partial(become_subscriber, file),
        used=quota_table(file, rows),
    )


def create(num_rows: int) -> int:
    """Create a file with empty tables; the caller closes it."""
    size = Table.num_bytes(num_rows) + QuotaTable.num_bytes(num_rows)
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("kvgate")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, size)
    return file


def table(file: int, num_rows: int) -> Table:
    """Map the table in the file, which must stay open for its lock."""
    memory = mmap.mmap(file, Table.num_bytes(num_rows))
    return Table(memoryview(memory), num_rows, lambda: _locked(file))


def quota_table(file: int, num_rows: int) -> QuotaTable:
    """Map the quota usage of tenants, which lies behind the table."""
    begin = Table.num_bytes(num_rows)
    memory = mmap.mmap(file, begin + QuotaTable.num_bytes(num_rows))
    return QuotaTable(memoryview(memory)[begin:], num_rows, lambda: _locked(file))


LOCK_WAIT_S = 0.001
"""Longest wait for the host's lock. A decision takes a tenth of it; a process stopped in a decision must not
stop the others."""


@contextmanager
def host_lock(file: int) -> Iterator[None]:
    """Hold the host's lock, so that one process decides at a time; goes without it after LOCK_WAIT_S."""
    is_ours = acquire_host_lock(file)
    try:
        yield
    finally:
        if is_ours:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, 1)


def acquire_host_lock(file: int) -> bool:
    """Acquire the host's lock; False if others hold it for longer than LOCK_WAIT_S."""
    end = time.perf_counter() + LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)  # the byte behind the table's lock
            return True
        except OSError:
            if time.perf_counter() >= end:
                return False
            os.sched_yield()


def become_subscriber(file: int) -> bool:
    """Become the host's subscriber until this process ends; False while another process is."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2)
    except OSError:
        return False
    return True


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Hold a record lock: it excludes processes, also those that share the open file, and ends with its
    process."""
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1)
