"""Second limit of a hanging test, which no test can evade.

pytest-timeout raises in the test's main thread. A test that hangs in C code never sees that, and others catch
it, as a callback of an event loop does. Some seconds after its limit, faulthandler's thread writes the stacks
of all threads to standard error and ends the process. pytest-xdist then reports which test that process ran,
and starts another process for the remaining tests.
"""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

GRACE_S = 20.0
"""Time that pytest-timeout's own failure may take: stacks, and the fixtures of the test."""


def limit_of(item: pytest.Item) -> float:
    """Seconds that pytest-timeout grants the test, 0 without limit: by its marker, --timeout or settings."""
    if marker := item.get_closest_marker("timeout"):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout", None)
    return float(item.config.getini("timeout") or 0 if given is None else given)


@contextmanager
def limited(item: pytest.Item) -> Iterator[None]:
    """Limit the time of the block to that of the test, and the grace."""
    limit_s = limit_of(item)
    if not limit_s:
        yield
        return
    file = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
