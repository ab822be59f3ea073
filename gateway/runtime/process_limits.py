"""What a serving process asks of its host: open files, memory given back, short turns of threads."""

import ctypes
import logging
import resource
import sys
from functools import cache

from gateway.runtime.descriptors import Descriptors

log = logging.getLogger("kvgate")

FEW_FILES = 4096
"""A limit of open files below this is worth a warning: some 2,000 requests at once."""
SWITCH_INTERVAL_S = 0.001
"""How long a thread that makes tokens of a long prompt may keep the interpreter while the loop waits for
it. Python's own 5 ms would be added to each turn of the loop."""


def prepare() -> None:
    """For a process that has loaded what it needs, and serves nobody yet."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    give_memory_back()


def raise_open_files() -> int:
    """The soft limit of open files becomes the hard one; says so when that is little. The limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError) as exc:  # macOS refuses what is over its own maximum
        log.warning("the limit of open files stays at %d: %s", soft, exc)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    log.log(
        logging.WARNING if soft < FEW_FILES else logging.INFO,
        "open files are limited to %d: about %d requests at once%s",
        soft,
        Descriptors(soft).max_clients,
        "; raise it (ulimit -n, LimitNOFILE=, nofile)" if soft < FEW_FILES else "",
    )
    return soft


@cache
def descriptors() -> Descriptors:
    """By the limit that this process has when it is first asked for: behind `raise_open_files`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Descriptors(sys.maxsize if soft == resource.RLIM_INFINITY else soft)


def give_memory_back() -> None:
    """What starting took and left free goes back to the system, where the C library can (glibc)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no such library
        return
    trim(0)
