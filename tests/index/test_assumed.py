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
    held: dict[WorkerId, int] = {}
    index.extend(RUN, held, now)
    return held


def test_what_is_assumed_goes_on_where_events_end() -> None:
    index = make()
    index.pin(A, RUN[2:4])
    assert overlap(index, 0) == {}
    held = {A: 2, B: 1}
    index.extend(RUN, held, now=0)
    assert held == {A: 4, B: 1}


def test_a_request_in_flight_counts_at_once_and_without_end() -> None:
    index = make()
    index.pin(A, RUN[:3])
    assert overlap(index, 1e9) == {A: 3}


def test_after_its_end_it_counts_until_it_expires() -> None:
    index = make(keep_s=10)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=100, was_run=True)
    assert overlap(index, 109.9) == {A: 5}
    assert overlap(index, 110) == {}
    assert index.num_blocks(A) == 0


def test_a_request_that_never_ran_leaves_nothing() -> None:
    index = make()
    index.pin(A, RUN)
    index.pin(A, RUN[:2])
    index.unpin(A, RUN, now=0, was_run=False)
    assert overlap(index, 0) == {A: 2}


def test_the_budget_evicts_tails_before_heads() -> None:
    index = make(max_blocks=3)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    assert overlap(index, 1) == {A: 3}


def test_a_reset_keeps_what_is_in_flight() -> None:
    index = make()
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    index.pin(A, RUN[:1])
    index.reset_worker(A)
    assert overlap(index, 1) == {A: 1}


def test_a_shorter_keep_forgets_what_was_kept_for_longer() -> None:
    index = make(keep_s=600)
    index.pin(A, RUN)
    index.unpin(A, RUN, now=0, was_run=True)
    index.set_keep(A, 1)
    assert overlap(index, 0) == {}


def test_workers_that_are_unknown_or_gone_are_no_error() -> None:
    index = make()
    index.pin(A, RUN)
    index.drop_worker(A)
    index.unpin(A, RUN, now=0, was_run=True)
    index.add_worker(A, keep_s=1, max_blocks=9)
    index.unpin(A, RUN, now=0, was_run=False)
    assert overlap(index, 0) == {}
    index.pin(WorkerId("x"), RUN)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 5), st.booleans(), st.booleans())))
def test_everything_pinned_and_unpinned_expires(steps: list[tuple[WorkerId, int, bool, bool]]) -> None:
    index = make(max_blocks=4)
    open_pins: list[tuple[WorkerId, int]] = []
    for now, (worker, depth, is_pin, was_run) in enumerate(steps):
        if is_pin or not open_pins:
            index.pin(worker, RUN[:depth])
            open_pins.append((worker, depth))
        else:
            pinned, held = open_pins.pop()
            index.unpin(pinned, RUN[:held], now, was_run=was_run)
        deepest = {w: max((d for p, d in open_pins if p == w), default=0) for w in (A, B)}
        found = overlap(index, now)
        assert all(found.get(w, 0) >= depth for w, depth in deepest.items())
    for worker, depth in open_pins:
        index.unpin(worker, RUN[:depth], 1000, was_run=False)
    assert overlap(index, 1e6) == {}
    assert repr(index) == "AssumedIndex(workers=2, blocks=0)"


BLOCKS = st.lists(st.integers(0, 8).map(BlockHash), max_size=6)
STEPS = st.lists(
    st.tuples(st.sampled_from(["pin", "unpin", "expire", "reset", "keep"]), BLOCKS, st.booleans())
)


@given(STEPS)
def test_blocks_are_counted_once_however_they_are_assumed(
    steps: list[tuple[str, list[BlockHash], bool]],
) -> None:
    index, now = make(keep_s=2.0, max_blocks=5), 0.0
    for what, blocks, flag in steps:
        now += 0.5
        if what == "pin":
            index.pin(A, blocks)
        elif what == "unpin":
            index.unpin(A, blocks, now, was_run=flag)
        elif what == "expire":
            index.extend(blocks, {}, now)
        elif what == "reset":
            index.reset_worker(A)
        else:
            index.set_keep(A, 1.0 if flag else 3.0)
        known = index._workers[A]
        assert index.num_blocks(A) == len(known.pins.keys() | known.until.keys())


def test_what_expires_together_is_taken_off_in_portions_and_counts_no_more_at_once() -> None:
    index, run = make(keep_s=10, max_blocks=10_000), [BlockHash(i) for i in range(3 * MAX_EXPIRED)]
    index.pin(A, run)
    index.unpin(A, run, now=0, was_run=True)
    held: dict[WorkerId, int] = {}
    index.extend(run, held, now=11)
    assert held == {}
    assert index.num_blocks(A) == 2 * MAX_EXPIRED
    index.extend([], held, now=11)  # too soon after the sweep before
    assert index.num_blocks(A) == 2 * MAX_EXPIRED
    for later in (1, 2):
        index.extend([], held, now=11 + later * SWEEP_EVERY_S)
    assert index.num_blocks(A) == 0
