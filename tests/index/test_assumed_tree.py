from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash
from gateway.index.assumed_tree import AssumedTree

KEEP_S, MAX_BLOCKS = 4.0, 7


class PlainAssumptions:
    """Oracle of assumed blocks of a worker, kept block by block."""

    def __init__(self) -> None:
        self.pins: Counter[BlockHash] = Counter()
        self.until: OrderedDict[BlockHash, float] = OrderedDict()

    def unpin(self, hashes: Sequence[BlockHash], now: float, was_run: bool) -> None:
        self.pins -= Counter(hashes)
        for block in reversed(hashes) if was_run else ():
            self.until[block] = now + KEEP_S
            self.until.move_to_end(block)
        while len(self.until) > MAX_BLOCKS:
            self.until.popitem(last=False)

    def depth(self, hashes: Sequence[BlockHash], first: int, now: float) -> int:
        return first + len(list(takewhile(lambda block: self.has(block, now), hashes[first:])))

    def has(self, block: BlockHash, now: float) -> bool:
        return self.pins[block] > 0 or self.until.get(block, 0.0) > now


FAMILY = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [1, 2, 9], [20, 21, 22, 23]]
PROMPTS = [
    [BlockHash(block) for block in path[:depth]] for path in FAMILY for depth in range(1, len(path) + 1)
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pin", "end", "fail", "wait", "reset", "expire"]),
        st.sampled_from(PROMPTS),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(STEPS)
def test_tree_equals_an_oracle_of_single_blocks(steps: list[tuple[str, list[BlockHash], int]]) -> None:
    tree, plain, now = AssumedTree(KEEP_S, MAX_BLOCKS), PlainAssumptions(), 0.0
    in_flight: list[tuple[list[BlockHash], int]] = []
    for step, prompt, number in steps:
        now += 1
        if step == "pin":
            first = number % len(prompt)
            tree.pin(prompt, first)
            plain.pins.update(prompt[first:])
            in_flight.append((prompt, first))
        elif step in ("end", "fail") and in_flight:
            ended, first = in_flight.pop(number % len(in_flight))
            if step == "end":
                tree.keep(ended, first, now)
            tree.unpin(ended, first)
            plain.unpin(ended[first:], now, step == "end")
        elif step == "reset":
            tree.reset()
            plain.until.clear()
        elif step == "expire":
            tree.expire(now, 1)
        compare(tree, plain, now)
    for ended, first in in_flight:
        tree.unpin(ended, first)
    tree.reset()
    assert (tree.num_pinned, tree.num_kept) == (0, 0)
    assert not tree._root.behind, "nothing is left of requests that are over"


def compare(tree: AssumedTree, plain: PlainAssumptions, now: float) -> None:
    for path in PROMPTS:
        for first in range(len(path)):
            assert tree.depth(path, first, now) == plain.depth(path, first, now)
        last = len(path) - 1
        assert tree.is_pinned(path, last) == (plain.pins[path[last]] > 0)
        assert max(tree.kept_until(path, last), now) == max(plain.until.get(path[last], 0.0), now)
    assert tree.num_pinned == sum(num > 0 for num in plain.pins.values())
    assert tree.num_kept <= MAX_BLOCKS


def test_a_long_prompt_is_one_run_and_two_where_another_parts_from_it() -> None:
    tree, long = AssumedTree(KEEP_S, 10_000), [BlockHash(i) for i in range(5000)]
    other = [*long[:3000], *(BlockHash(-i) for i in range(1, 9))]
    tree.pin(long, 0)
    (run,) = tree._root.behind.values()
    assert len(run.blocks) == 5000
    assert tree.depth(other, 0, 0.0) == 3000
    tree.pin(other, 0)
    (run,) = tree._root.behind.values()
    assert (len(run.blocks), run.num_pins) == (3000, 2)
    assert sorted(len(behind.blocks) for behind in run.behind.values()) == [8, 2000]
    assert tree.num_pinned == 5008


def test_a_closed_tree_leaves_no_runs_that_refer_to_each_other() -> None:
    tree = AssumedTree(KEEP_S, MAX_BLOCKS)
    tree.pin(PROMPTS[5], 0)
    tree.keep(PROMPTS[5], 0, 0.0)
    run = tree._root.behind[BlockHash(1)]
    tree.close()
    assert run.parent is None and run.kept is None and not tree._root.behind
    tree.unpin(PROMPTS[5], 0)
    assert (tree.num_pinned, tree.num_kept) == (0, 0)


def test_the_oldest_request_loses_whole_runs_and_keeps_those_before_them() -> None:
    tree = AssumedTree(KEEP_S, 5)
    path, other = [BlockHash(i) for i in range(1, 6)], [BlockHash(-1), BlockHash(-2)]
    for prompt in (path[:3], path, other):
        tree.pin(prompt, 0)
    for prompt in (path[:3], path, other):
        tree.keep(prompt, 0, 0.0)
        tree.unpin(prompt, 0)
    assert tree.num_kept == 5
    assert [tree.depth(each, 0, 0.0) for each in (path, other)] == [3, 2]
    tree.keep([], 0, 0.0)
    tree.reset()
    assert tree.num_kept == 0 and not tree._root.behind
