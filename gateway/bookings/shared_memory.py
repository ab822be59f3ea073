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
from gateway.bookings.tenant_usage import Used, UsedTable
from gateway.config import Config
from gateway.core.errors import ConfigError


class Place:
    """One process's view of the shared table. `far_row` is that of other hosts, if they publish; `take_role`
    returns True if this process is the host's subscriber."""

    def __init__(
        self,
        table: Table,
        row: int,
        far_row: int | None = None,
        *,
        take_turn: Lock = nullcontext,
        take_role: Callable[[], bool] = lambda: True,
        used: UsedTable | None = None,
    ) -> None:
        self.table = table
        self.far_row = far_row
        self.take_role = take_role
        self.ledger = SharedLedger(table, row, take_turn, far_row)
        self.assumed = SharedAssumedIndex(table, row)
        self._row = row
        self._used = used

    def used_of(self, tenant: str) -> Used | None:
        """Return a tenant's quota usage, of this process and the others."""
        return self._used.of(tenant, self._row) if self._used else None

    def tells_as(self, gateway: int) -> None:
        """Set the id under which this process publishes to other hosts."""
        self.table.tells_as(self._row, gateway)


def shares_bookings(config: Config) -> bool:
    """Return True if hosts share their bookings. Raises ConfigError."""
    if config.booking in ("shared", "atomic") and not config.redis:
        raise ConfigError(f"booking: {config.booking} needs --redis, the URL of a server")
    return bool(config.redis) and config.booking != "own"


def num_rows(config: Config) -> int:
    """Return the rows of the table: one per process, and one for all other hosts."""
    return config.processes + shares_bookings(config)


def place_alone(config: Config) -> Place | None:
    """Return the memory of a process without neighbours; None where there are no other hosts."""
    if not shares_bookings(config):
        return None
    return Place(Table(memoryview(bytearray(Table.num_bytes(2))), 2, nullcontext), 0, 1)


def place_beside(config: Config, file: int, row: int, rows: int) -> Place:
    """Return one process's view of the memory that several processes share."""
    far_row = rows - 1 if shares_bookings(config) else None
    return Place(
        table(file, rows),
        row,
        far_row,
        take_turn=lambda: turn(file),
        take_role=partial(take_role, file),
        used=used_table(file, rows),
    )


def create(num_rows: int) -> int:
    """Create a file with empty tables; the caller closes it."""
    size = Table.num_bytes(num_rows) + UsedTable.num_bytes(num_rows)
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


def used_table(file: int, num_rows: int) -> UsedTable:
    """Map the quota usage of tenants, which lies behind the table."""
    begin = Table.num_bytes(num_rows)
    memory = mmap.mmap(file, begin + UsedTable.num_bytes(num_rows))
    return UsedTable(memoryview(memory)[begin:], num_rows, lambda: _locked(file))


TURN_WAIT_S = 0.001
"""Longest wait for the host's lock. A decision takes a tenth of it; a process stopped in a decision must not
stop the others."""


@contextmanager
def turn(file: int) -> Iterator[None]:
    """Hold the host's lock, so that one process decides at a time; goes without it after TURN_WAIT_S."""
    is_ours = take_turn(file)
    try:
        yield
    finally:
        if is_ours:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, 1)


def take_turn(file: int) -> bool:
    """Acquire the host's lock; False if others hold it for longer than TURN_WAIT_S."""
    end = time.perf_counter() + TURN_WAIT_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)  # the byte behind the table's lock
            return True
        except OSError:
            if time.perf_counter() >= end:
                return False
            os.sched_yield()


def take_role(file: int) -> bool:
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
