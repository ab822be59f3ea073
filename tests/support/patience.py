"""Deadlines of tests, longer on a slow or busy machine, and the waits that keep them.

    SLOWNESS           how many times longer this machine takes for a piece of work than an idle one: 1 to 6
    patience(20)       20 s on an idle machine, longer on this one
    until(claim)       poll until the claim is true
    wait_until(claim)  the same without an event loop
    stays(claim, 0.1)  poll for that long, while the claim must remain true

Only a failure reaches a deadline, so a long one costs nothing. The machine is measured at the start of each
test process, and again where a wait is over: others may have made it busy since. `TEST_PATIENCE=10` sets the
factor instead.
"""

import asyncio
import inspect
import os
from collections.abc import Callable
from time import monotonic, perf_counter, sleep
from typing import Any

import pytest

WORK = range(2_000_000)
WORK_S = 0.06
"""Time of the work on an idle machine."""
MOST = 6.0
DEADLINE_S = 20.0
"""Deadline of anything that should happen at once, on an idle machine."""


def measured() -> float:
    """Slowness of this machine now."""
    if given := os.environ.get("TEST_PATIENCE"):
        return float(given)
    began = perf_counter()
    for _ in WORK:
        pass
    return min(max((perf_counter() - began) / WORK_S, 1.0), MOST)


SLOWNESS = measured()


def patience(seconds: float) -> float:
    """Deadline on this machine, of one that is right on an idle machine."""
    return seconds * SLOWNESS


class Deadline:
    """Deadline that begins now; `seconds` are those of an idle machine."""

    def __init__(self, seconds: float = DEADLINE_S) -> None:
        self._seconds = seconds
        self._began = monotonic()

    def has_passed(self) -> bool:
        passed_s = monotonic() - self._began
        return passed_s > patience(self._seconds) and passed_s > self._seconds * measured()


async def until(
    claim: Callable[[], Any], what: str = "", seconds: float = DEADLINE_S, pause_s: float = 0.005
) -> None:
    """Poll until `claim`, or the result of what it returns to await, is true; AssertionError in the end."""
    deadline = Deadline(seconds)
    while True:
        held = claim()
        if await _result(held, claim, what, seconds) if inspect.isawaitable(held) else held:
            return
        assert not deadline.has_passed(), never(claim, what)
        await asyncio.sleep(pause_s)


async def stays(claim: Callable[[], Any], seconds: float, what: str = "") -> None:
    """Poll for this long; AssertionError as soon as `claim` is false.

    It is for what must not happen: no event marks that, and a busy machine can only make it miss a fault.
    """
    end_s = monotonic() + seconds
    while monotonic() < end_s:
        assert claim(), f"did not stay true: {what or _place(claim)}"
        await asyncio.sleep(0.01)


def wait_until(
    claim: Callable[[], Any], what: str = "", seconds: float = DEADLINE_S, pause_s: float = 0.02
) -> Any:
    """Poll until `claim` is true, without an event loop; returns its value."""
    deadline = Deadline(seconds)
    while not (held := claim()):
        assert not deadline.has_passed(), never(claim, what)
        sleep(pause_s)
    return held


def never(claim: Callable[[], Any], what: str) -> str:
    """Message of a wait that ended without success."""
    return f"never happened: {what or _place(claim)}"


def _place(claim: Callable[[], Any]) -> str:
    code = getattr(claim, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(claim)


async def _result(held: Any, claim: Callable[[], Any], what: str, seconds: float) -> Any:
    """Value of an awaitable, which must not hang either."""
    try:
        async with asyncio.timeout(patience(seconds)):
            return await held
    except TimeoutError as exc:
        raise AssertionError(never(claim, what)) from exc


def lengthen_limits(items: list[pytest.Item]) -> None:
    """Make the marker `timeout` of each test as patient as the deadlines within it."""
    for item in items:
        marker = item.get_closest_marker("timeout")
        if marker is not None and marker.args and SLOWNESS > 1:
            limit = pytest.mark.timeout(patience(marker.args[0]), *marker.args[1:], **marker.kwargs)
            item.add_marker(limit, append=False)
