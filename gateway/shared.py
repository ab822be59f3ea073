"""The memory that the processes of one host share, as an open file: who inherits it has it.

It has no name, so it is gone with the last process that uses it.
"""

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.core.booked import Table


def create(num_rows: int) -> int:
    """A new file with an empty table; the caller closes it."""
    size = Table.num_bytes(num_rows)
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("kvgate")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, size)
    return file


def table(file: int, num_rows: int) -> Table:
    """The table in the file, which must stay open for its lock."""
    memory = mmap.mmap(file, Table.num_bytes(num_rows))
    return Table(memoryview(memory), num_rows, lambda: _locked(file))


TURN_WAIT_S = 0.001
"""A decision takes a tenth of it. Whoever is stopped in the middle of one must not stop the others."""


@contextmanager
def turn(file: int) -> Iterator[None]:
    """One process decides at a time; without the turn, where it is not to be had in time."""
    is_ours = take_turn(file)
    try:
        yield
    finally:
        if is_ours:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, 1)


def take_turn(file: int) -> bool:
    """False if others decide for longer than TURN_WAIT_S."""
    end = time.perf_counter() + TURN_WAIT_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)  # the byte behind that of the table's lock
            return True
        except OSError:
            if time.perf_counter() >= end:
                return False
            os.sched_yield()


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """A record lock: it excludes processes, also those that share the open file, and dies with its holder."""
    fcntl.lockf(file, fcntl.LOCK_EX, 1)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1)
