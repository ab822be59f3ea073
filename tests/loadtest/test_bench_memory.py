import os
import socket
from pathlib import Path

import pytest

from gateway.runtime.descriptors import FILES_PER_REQUEST, Descriptors
from loadtest.bench_memory import NAMES, SPARE_FILES, WorstStall, _ask, _expect, affordable, figures
from loadtest.bench_proxy import main
from loadtest.instruments import InstrumentError

PAGE = """\
# TYPE kvgate_event_loop_lag_max_seconds gauge
kvgate_event_loop_lag_max_seconds 0.004
kvgate_event_loop_cpu_lag_max_seconds 0.003
kvgate_gc_pause_max_seconds 0.0005
"""


class Nothing:
    """Materials that must not be made."""

    def prompts(self) -> Path:
        raise AssertionError("made for nothing")

    def bodies(self, name: str) -> Path:
        raise AssertionError("made for nothing")

    long_bodies = prompts


def test_the_maximum_over_all_pages_is_kept() -> None:
    worst = WorstStall()
    worst.read(PAGE)
    worst.read(PAGE.replace("0.004", "0.002").replace("0.0005", "0.0007"))
    assert (worst.lag_ms, worst.cpu_ms) == (pytest.approx(4), pytest.approx(3))
    assert worst.gc_ms == pytest.approx(0.7)


def test_without_scenarios_nothing_is_made() -> None:
    assert list(figures(["small"], 2, Nothing())) == []


def test_scenarios_are_known_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in "".join(shown.split()) for name in NAMES)


def test_each_client_sends_another_prompt() -> None:
    assert _ask(1) != _ask(2)
    head, _, body = _ask(7).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head


def test_a_stream_that_does_not_begin_is_an_error() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"HTTP/1.1 503 no")
        with pytest.raises(InstrumentError, match="did not begin"):
            _expect(here)


def test_a_stream_that_never_begins_is_an_error() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        with pytest.raises(InstrumentError, match="did not begin: .*unavailable"):
            _expect(here)


@pytest.mark.parametrize(("limit", "num"), [(1 << 20, 10_000), (20_000, 9_650), (1024, 398), (512, 174)])
def test_no_more_streams_are_opened_than_the_limit_of_open_files_allows(limit: int, num: int) -> None:
    assert affordable(10_000, limit) == num
    assert SPARE_FILES + FILES_PER_REQUEST * num <= Descriptors(limit).clients_end


def test_too_few_open_files_are_named() -> None:
    assert affordable(20, 256) == 20
    with pytest.raises(InstrumentError, match="128 open files are too few for open streams; raise the limit"):
        affordable(10_000, 128)


def test_memory_is_read_from_this_process() -> None:
    from loadtest.fleet import rss_mb

    assert rss_mb(os.getpid()) > 10
