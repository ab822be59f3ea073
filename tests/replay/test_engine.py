"""An engine in virtual time gives the same results in leaps as step by step."""

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.clock import Clock
from gateway.replay.engine import VirtualEngine
from gateway.replay.profile import H100_8B

SMALL = replace(H100_8B, kv_tokens=640, max_batched_tokens=64, max_num_seqs=4)
Request = tuple[float, int, int, float | None]


def run(requests: list[Request], *, glides: bool) -> list[Any]:
    """All visible events with their times; the last of a request is when it is aborted."""
    clock, seen = Clock(), []
    engine = VirtualEngine(
        SMALL, 16, clock, lambda events: seen.append((clock.now, "events", events)), glides=glides
    )

    def arrive(number: int, num_prompt: int, num_output: int, abort_s: float | None) -> None:
        seen.append((clock.now, "load", engine.reported))
        tokens = array("I", [number % 3] * 16 + list(range(num_prompt)))
        sequence = engine.add(
            tokens,
            [1_000 + number * 500 + i for i in range(num_output)],
            lambda: seen.append((clock.now, "first", number)),
            lambda: seen.append((clock.now, "last", number, sequence.num_cached_tokens)),
        )
        if abort_s is not None:
            clock.at(clock.now + abort_s, lambda: engine.abort(sequence))

    for number, (at, *rest) in enumerate(requests):
        clock.at(at, lambda number=number, rest=rest: arrive(number, *rest))  # type: ignore[misc]
    clock.run()
    assert not engine.scheduler.has_work
    return seen


moments = st.floats(0, 3, allow_nan=False).map(lambda s: round(s, 4))
requests = st.lists(
    st.tuples(moments, st.integers(1, 200), st.integers(1, 120), st.none() | moments), min_size=1, max_size=12
)


@given(requests)
def test_leaps_and_single_steps_give_the_same_events(some: list[Request]) -> None:
    assert run(some, glides=True) == run(some, glides=False)


def test_computing_takes_its_time() -> None:
    seen = run([(0.0, 48, 11, None)], glides=True)
    first, last = (row[0] for row in seen if row[1] in ("first", "last"))
    assert first == pytest.approx(64 / SMALL.prefill_tokens_per_s + SMALL.step_s, rel=0.02)
    assert last - first == pytest.approx(10 * SMALL.step_s)


@pytest.mark.parametrize("glides", [True, False])
def test_a_stopped_engine_has_no_further_events(glides: bool) -> None:
    clock, seen = Clock(), []
    engine = VirtualEngine(SMALL, 16, clock, seen.append, glides=glides)
    engine.add(array("I", range(64)), [1] * 100, lambda: seen.append("first"), lambda: seen.append("last"))
    clock.at(0.1, engine.stop)
    clock.at(0.1, seen.clear)
    clock.run()
    assert seen == []


def test_pinned_blocks_stay_until_they_are_released() -> None:
    clock = Clock()
    engine = VirtualEngine(SMALL, 16, clock, lambda _: None)
    pinned = engine.add(array("I", range(64)), [1], pins="p")
    running = engine.add(array("I", range(100)), [1] * 50)
    clock.at(0.2, lambda: engine.release(pinned))
    clock.run()
    assert running.is_finished and engine.reported.kv_usage == 0.0


def test_blocks_of_another_worker_are_fetched() -> None:
    clock, times = Clock(), []
    engine = VirtualEngine(SMALL, 16, clock, lambda _: None)
    engine.add(array("I", range(96)), [1, 2], lambda: times.append(clock.now), loads=True)
    clock.run()
    fetched_s = SMALL.transfer_s + 96 / SMALL.transfer_tokens_per_s
    assert times == [pytest.approx(fetched_s + SMALL.step_s, rel=0.05)]
