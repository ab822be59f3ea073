from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.index.assumed import MAX_EXPIRED, SWEEP_EVERY_S, AssumedIndex

A, B = WorkerId("a:1"), WorkerId("b:1")
RUN = [BlockHash(i) for i in range(1, 6)]


def make(keep_s: float = 10.0, max_blocks: int = 100) -> AssumedIndex:
    index = AssumedIndex()
    index.add_worker(A, keep_s=keep_s, max_blocks=max_blocks)
    index.add_worker(B, keep_s=keep_s, max_blocks=max_blocks)
    return index


def overlap(index: AssumedIndex, now: float) -> dict[WorkerId, int]:
    found: dict[WorkerId, int] = {}
    index.extend(RUN, found, now)
    return found


def test_assumed_blocks_extend_the_overlap_of_events() -> None:
    index = make()
    index.pin(A, RUN[:4], 2)
    assert overlap(index, 0) == {}
    found = {A: 2, B: 1}
    index.extend(RUN, found, now=0)
    assert found == {A: 4, B: 1}


def test_blocks_of_a_request_in_flight_do_not_expire() -> None:
    index = make()
    index.pin(A, RUN[:3])
    assert overlap(index, 1e9) == {A: 3}


def test_blocks_of_an_ended_request_expire() -> None:
    index = make(keep_s=10)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=100, was_run=True)
    assert overlap(index, 109.9) == {A: 5}
    assert overlap(index, 110) == {}
    assert index.num_kept(A) == 0


def test_request_that_never_ran_leaves_no_blocks() -> None:
    index = make()
    index.pin(A, RUN)
    index.pin(A, RUN[:2])
    index.unpin(A, RUN, now=0, was_run=False)
    assert overlap(index, 0) == {A: 2}


def test_budget_evicts_tails_before_heads() -> None:
    index = make(max_blocks=3)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    assert overlap(index, 1) == {A: 3}


def test_reset_keeps_blocks_of_requests_in_flight() -> None:
    index = make()
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    index.pin(A, RUN[:1])
    index.reset_worker(A)
    assert overlap(index, 1) == {A: 1}


def test_shorter_keep_time_forgets_blocks_that_are_older() -> None:
    index = make(keep_s=600)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    index.set_keep(A, 1)
    assert overlap(index, 0) == {}


def test_unknown_and_dropped_workers_raise_no_error() -> None:
    index = make()
    index.pin(A, RUN)
    index.drop_worker(A)
    index.unpin(A, RUN, now=0, was_run=True)
    index.add_worker(A, keep_s=1, max_blocks=9)
    index.unpin(A, RUN, now=0, was_run=False)
    assert overlap(index, 0) == {}
    index.pin(WorkerId("x"), RUN)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 5), st.booleans(), st.booleans())))
def test_all_blocks_expire_after_random_requests(steps: list[tuple[WorkerId, int, bool, bool]]) -> None:
    index = make(max_blocks=4)
    open_pins: list[tuple[WorkerId, int]] = []
    for now, (worker, depth, is_pin, was_run) in enumerate(steps):
        if is_pin or not open_pins:
            index.pin(worker, RUN[:depth])
            open_pins.append((worker, depth))
        else:
            pinned, depth = open_pins.pop()
            index.unpin(pinned, RUN[:depth], now, was_run=was_run)
        deepest = {w: max((d for p, d in open_pins if p == w), default=0) for w in (A, B)}
        found = overlap(index, now)
        assert all(found.get(w, 0) >= depth for w, depth in deepest.items())
    for worker, depth in open_pins:
        index.unpin(worker, RUN[:depth], 1000, was_run=False)
    assert overlap(index, 1e6) == {}
    assert repr(index) == "AssumedIndex(workers=2, pinned=0, kept=0)"


def test_requests_of_a_dropped_worker_leave_those_of_its_successor_alone() -> None:
    index = make()
    index.pin(A, RUN[:2])
    index.add_worker(A, keep_s=10, max_blocks=9)
    index.unpin(A, RUN[:2], now=0, was_run=True)
    assert overlap(index, 0) == {}
    index.pin(A, RUN, 3)
    index.unpin(A, RUN, now=0, first=3, was_run=True)
    found = {A: 3}
    index.extend(RUN, found, now=0)
    assert found == {A: 5} and index.num_kept(A) == 2


def test_expired_requests_count_no_more_and_are_removed_in_portions() -> None:
    index, runs = make(keep_s=10, max_blocks=10_000), [[BlockHash(i)] for i in range(3 * MAX_EXPIRED)]
    for run in runs:
        index.pin(A, run)
        index.unpin(A, run, now=0, was_run=True)
    found: dict[WorkerId, int] = {}
    index.extend(runs[-1], found, now=11)
    assert found == {}
    assert index.num_kept(A) == 2 * MAX_EXPIRED
    index.extend([], found, now=11)  # too soon after the sweep before
    assert index.num_kept(A) == 2 * MAX_EXPIRED
    for later in (1, 2):
        index.extend([], found, now=11 + later * SWEEP_EVERY_S)
    assert index.num_kept(A) == 0
