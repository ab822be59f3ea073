from collections import Counter, OrderedDict
from itertools import takewhile

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
    index.pin(A, RUN[2:4])
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
    assert repr(index) == "AssumedIndex(workers=2, blocks=0)"


class PlainAssumptions:
    """Oracle of assumed blocks of a worker, kept block by block."""

    def __init__(self, keep_s: float, max_blocks: int) -> None:
        self.keep_s, self.max_blocks = keep_s, max_blocks
        self.pins: Counter[BlockHash] = Counter()
        self.until: OrderedDict[BlockHash, float] = OrderedDict()

    def unpin(self, hashes: list[BlockHash], now: float, was_run: bool) -> None:
        self.pins -= Counter(hashes)
        for block in reversed(hashes) if was_run else ():
            self.until[block] = now + self.keep_s
            self.until.move_to_end(block)
        while len(self.until) > self.max_blocks:
            self.until.popitem(last=False)

    def depth(self, hashes: list[BlockHash], now: float) -> int:
        leading = takewhile(lambda block: self.pins[block] > 0 or self.until.get(block, 0.0) > now, hashes)
        return len(list(leading))


FAMILY = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [1, 2, 9], [20, 21, 22, 23]]
PROMPTS = [[BlockHash(block) for block in path[:depth]] for path in FAMILY for depth in range(1, 7)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["pin", "end", "fail", "wait", "reset"]), st.sampled_from(PROMPTS)), max_size=40
)


@given(STEPS)
def test_assumed_index_equals_an_oracle_of_single_blocks(
    steps: list[tuple[str, list[BlockHash]]],
) -> None:
    index, plain, now = make(keep_s=4.0, max_blocks=7), PlainAssumptions(4.0, 7), 0.0
    in_flight: list[list[BlockHash]] = []
    for step, prompt in steps:
        now += 1
        if step == "pin":
            index.pin(A, prompt)
            plain.pins.update(prompt)
            in_flight.append(prompt)
        elif step in ("end", "fail") and in_flight:
            ended = in_flight.pop(0)
            index.unpin(A, ended, now, was_run=step == "end")
            plain.unpin(ended, now, step == "end")
        elif step == "reset":
            index.reset_worker(A)
            plain.until.clear()
        for path in PROMPTS:
            found: dict[WorkerId, int] = {}
            index.extend(path, found, now)
            assert found.get(A, 0) == plain.depth(path, now)
        assert index.num_pinned(A) == len(plain.pins)
        assert index.num_kept(A) <= 7


def test_expired_blocks_count_no_more_and_are_removed_in_portions() -> None:
    index, run = make(keep_s=10, max_blocks=10_000), [BlockHash(i) for i in range(3 * MAX_EXPIRED)]
    index.pin(A, run)
    index.unpin(A, run, now=0, was_run=True)
    found: dict[WorkerId, int] = {}
    index.extend(run, found, now=11)
    assert found == {}
    assert index.num_kept(A) == 2 * MAX_EXPIRED
    index.extend([], found, now=11)  # too soon after the sweep before
    assert index.num_kept(A) == 2 * MAX_EXPIRED
    for later in (1, 2):
        index.extend([], found, now=11 + later * SWEEP_EVERY_S)
    assert index.num_kept(A) == 0
