"""Process-wide settings of a server: open files, free memory, thread switching."""

import ctypes
import logging
import resource
import sys
from functools import cache

from gateway.runtime.descriptors import Descriptors

log = logging.getLogger("kvgate")

FEW_FILES = 4096
"""Limit of open files below which a warning is logged: some 2,000 requests at once."""
SWITCH_INTERVAL_S = 0.001
"""Time that a thread tokenizing a long prompt may keep the interpreter while the loop waits for it. Python's
own 5 ms would be added to each loop iteration."""
LARGE_BYTES = 1 << 20
"""Size from which a block of memory is mapped by itself, and returned to the system as soon as it is free.
glibc would raise it to the largest block freed so far (32 MiB at most): then the next large body comes from
the heap, which stays as large as it was."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt (malloc.h)."""


def prepare() -> None:
    """Prepare a process that has loaded everything and serves no client yet."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    give_memory_back()


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, and log it; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError) as exc:  # macOS refuses what is over its own maximum
        log.warning("limit of open files stays at %d: %s", soft, exc)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    log.log(
        logging.WARNING if soft < FEW_FILES else logging.INFO,
        "open files limited to %d: about %d requests at once%s",
        soft,
        Descriptors(soft).max_clients,
        "; raise it (ulimit -n, LimitNOFILE=, nofile)" if soft < FEW_FILES else "",
    )
    return soft


@cache
def descriptors() -> Descriptors:
    """Return the shares of this process's files, by its limit at the first call: call `raise_open_files`
    before."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Descriptors(sys.maxsize if soft == resource.RLIM_INFINITY else soft)


def give_memory_back() -> None:
    """Return memory that starting left free to the system, and later each large block, where the C library
    can (glibc)."""
    try:
        library = ctypes.CDLL(None)
        trim, set_parameter = library.malloc_trim, library.mallopt
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no such library
        return
    trim(0)
    set_parameter(M_MMAP_THRESHOLD, LARGE_BYTES)
