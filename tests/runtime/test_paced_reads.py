"""Turns of reads on a fake transport; each slice that is fed takes `costs_s` of the clock."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from gateway.runtime import paced_reads
from gateway.runtime.paced_reads import SLICE_BYTES, PacedReads
from gateway.runtime.work_slices import SLICE_S


class Reading:
    """Transport, loop and owner in one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.costs_s = 0.0, 0.0
        self.is_reading = True
        self.fed: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.pauses_behind = -1
        patch.setattr(paced_reads, "monotonic", lambda: self.now)
        transport, loop = cast(asyncio.Transport, self), cast(asyncio.AbstractEventLoop, self)
        self.reads = PacedReads(transport, loop, self.feed)

    def feed(self, data: bytes) -> None:
        self.fed.append(data)
        self.now += self.costs_s
        if len(self.fed) == self.pauses_behind:
            self.reads.pause()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def iterate(self) -> int:
        """Run what waits for the next iteration; returns the number of slices that are fed so far."""
        waiting, self.later = self.later, []
        for callback in waiting:
            callback()
        return len(self.fed)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


DATA = bytes(range(256)) * (10 * SLICE_BYTES // 256) + b"end"


def test_a_large_read_is_fed_in_slices_and_others_come_next(reading: Reading) -> None:
    reading.reads.take(DATA)
    assert (len(reading.fed), b"".join(reading.fed), reading.reads.has_rest) == (11, DATA, False)
    assert not reading.is_reading
    reading.iterate()
    assert reading.is_reading and not reading.later


def test_slow_slices_are_a_turn_each(reading: Reading) -> None:
    reading.costs_s = 2 * SLICE_S
    reading.reads.take(DATA)
    assert [len(reading.fed), *(reading.iterate() for _ in range(3))] == [1, 2, 3, 4]
    assert repr(reading.reads) == f"PacedReads(paused=False, rest={len(DATA) - 4 * SLICE_BYTES})"
    while reading.reads.has_rest:
        assert not reading.is_reading
        reading.iterate()
    assert b"".join(reading.fed) == DATA
    reading.iterate()
    assert reading.is_reading


def test_bytes_behind_a_rest_follow_it(reading: Reading) -> None:
    reading.costs_s = 2 * SLICE_S
    reading.reads.take(DATA)
    reading.reads.take(b"more")
    while reading.later:
        reading.iterate()
    assert b"".join(reading.fed) == DATA + b"more"


def test_an_owner_that_pauses_gets_nothing_until_it_resumes(reading: Reading) -> None:
    reading.pauses_behind = 3
    reading.reads.take(DATA)
    assert len(reading.fed) == 3 and not reading.is_reading
    assert reading.iterate() == 3 and reading.reads.is_paused
    reading.reads.resume()
    assert len(reading.fed) == 3 and not reading.is_reading
    assert reading.iterate() == 11
    reading.iterate()
    assert reading.is_reading


def test_a_pause_outlasts_a_turn(reading: Reading) -> None:
    reading.reads.yield_to_others()
    reading.reads.pause()
    reading.iterate()
    assert not reading.is_reading
    reading.reads.resume()
    assert reading.is_reading


def test_the_next_owner_reads_at_once(reading: Reading) -> None:
    reading.reads.take(DATA)
    reading.reads.hand_over()
    assert reading.is_reading
    reading.iterate()
    assert reading.is_reading


def test_the_rest_can_be_taken_or_dropped(reading: Reading) -> None:
    reading.pauses_behind = 3
    reading.reads.take(DATA)
    assert reading.reads.take_rest() == DATA[3 * SLICE_BYTES :] and not reading.reads.has_rest
    reading.reads.resume()
    reading.pauses_behind = 6
    reading.reads.take(DATA)
    reading.reads.close()
    reading.reads.resume()
    assert reading.iterate() == 6
