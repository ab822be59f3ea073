"""Leaks are charged to the test that left them: a plugin that collects garbage where a test ends.

An unclosed socket or an exception in a finalizer shows when its object is freed. Objects in cycles are freed
by the garbage collector, at some later test, which would fail in place of the one that left them.

    a test marked `process` ends, the last of a module, or the one before such a test
        collect; what the garbage reports fails this test, in its teardown
    a test has failed
        collect; what the garbage reports is dropped: its exception kept alive what it had no time to close
    the last test of a module has ended
        freeze the objects that are left, so that no later collection scans them again
"""

import gc
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

TRACES = ("last_type", "last_value", "last_traceback", "last_exc")
"""Attributes of `sys` in which the runner keeps the exception of a failed test, with its frames."""


class LeakCollector:
    """Plugin of pytest that collects garbage at the ends of tests."""

    def __init__(self) -> None:
        self._has_failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
        self._has_failed = False
        done = yield
        if self._has_failed:
            drop_garbage()
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._has_failed |= report.failed
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        yield
        if self._has_failed:
            return
        if _is_last_of_module(item, nextitem) or _starts_processes(item) or _starts_processes(nextitem):
            _forget_fixtures(item)
            reports = collect_garbage()
            if _is_last_of_module(item, nextitem):
                gc.freeze()
            if reports:
                pytest.fail("garbage of this test is a leak:\n" + "\n".join(reports), pytrace=False)


def collect_garbage() -> list[str]:
    """Free all garbage; returns what its finalizers reported, such as the warning of an unclosed socket."""
    reports: list[str] = []

    def report(unraisable: "sys.UnraisableHookArgs") -> None:
        reports.append(f"{unraisable.exc_type.__name__}: {unraisable.exc_value} ({unraisable.object!r})")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", report)
        gc.collect()
    return reports


def drop_garbage() -> None:
    """Free a failed test's exception and all garbage, and ignore what finalizers report."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "unraisablehook", lambda unraisable: None)
        warnings.simplefilter("ignore")
        for name in TRACES:
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()


def _starts_processes(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("process") is not None


def _is_last_of_module(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    return nextitem is None or nextitem.path != item.path


def _forget_fixtures(item: Any) -> None:
    """Drop the values of fixtures, which have ended; the runner drops them after the last report only."""
    if getattr(item, "funcargs", None):
        item.funcargs = {}
