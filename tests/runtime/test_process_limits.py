"""Limits that a serving process raises on its host."""

import ctypes
import logging
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.runtime import process_limits
from gateway.runtime.descriptors import Descriptors
from tests.support.patience import patience


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    limits, interval = resource.getrlimit(resource.RLIMIT_NOFILE), sys.getswitchinterval()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sys.setswitchinterval(interval)


def test_the_soft_limit_of_open_files_becomes_the_hard_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are not this machine's, which may be low or infinite; tests/blackbox raises a real one."""
    limits = [(1024, 20_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    with caplog.at_level(logging.INFO, "kvgate"):
        assert process_limits.raise_open_files() == 20_000
    assert limits[1:] == [(20_000, 20_000)]
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert f"limited to 20000: about {Descriptors(20_000).max_clients} requests at once" in caplog.text


def test_a_low_hard_limit_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert process_limits.raise_open_files() == 1024
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "about 464 requests at once; raise it (ulimit -n" in record.getMessage()


def test_a_limit_that_cannot_be_raised_stays_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("over the system's own")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert process_limits.raise_open_files() == 256
    assert "stays at 256: over the system's own" in caplog.text


def test_an_infinite_limit_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert process_limits.raise_open_files() == sys.maxsize
    assert not caplog.records


def test_memory_is_returned_where_the_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Library:
        def __init__(self, name: None) -> None:
            self.malloc_trim = calls.append
            self.mallopt = lambda which, value: calls.append(value)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    process_limits.give_memory_back()
    assert calls == [0, process_limits.LARGE_BYTES]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # another C library: no effect
    process_limits.give_memory_back()
    assert calls == [0, process_limits.LARGE_BYTES]


def test_threads_switch_often_in_a_prepared_process() -> None:
    process_limits.prepare()
    assert sys.getswitchinterval() == pytest.approx(process_limits.SWITCH_INTERVAL_S)


LARGE_AFTER_LARGE = """
import ctypes
from gateway.runtime.process_limits import give_memory_back

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Info
give_memory_back()
bytearray(24 << 20)
before = mallinfo2().hblks
large = bytearray(24 << 20)
print(mallinfo2().hblks - before)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc of 2.33 or newer")
def test_a_large_block_is_mapped_by_itself_after_one_as_large_was_freed() -> None:
    """Else it is part of the heap, and stays in the process when it is freed."""
    command = [sys.executable, "-c", LARGE_AFTER_LARGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert done.stdout == "1\n", done.stderr
