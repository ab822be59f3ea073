"""Token parity: blocks that an engine stored for a prompt, compared with our tokens."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from gateway.core.blocks import Tokens, hash_blocks, root_hash, tokens_of
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.parity.live_check import (
    CLEARED,
    MEMORY,
    RAISED,
    SETTLE_S,
    CheckResults,
    TokenCheck,
    TokenSample,
    compare,
)
from tests.support.fakes import worker

W, SIZE, ROOT = WorkerId("w:1"), 4, root_hash("root")
OURS = list(range(100, 130))


class Engine:
    """Stores prompts as an engine does, and publishes the events."""

    def __init__(self) -> None:
        self.index = MemoryIndex()
        self.index.add_worker(W, ROOT, SIZE)
        self.check = TokenCheck(worker())
        self.names: dict[tuple[int, ...], int] = {}

    def store(self, tokens: Sequence[int], *, known_blocks: int = 0) -> None:
        """Store the full blocks behind the first `known_blocks`, as one run."""
        end = len(tokens) // SIZE * SIZE
        ends = range((known_blocks + 1) * SIZE, end + 1, SIZE)
        names = [self.names.setdefault(tuple(tokens[:n]), len(self.names)) for n in ends]
        parent = self.names[tuple(tokens[: known_blocks * SIZE])] if known_blocks else None
        event = BlocksStored(names, parent, tokens_of(tokens[known_blocks * SIZE : end]), SIZE)
        self.index.apply(W, event)
        self.check.heard(event)

    def sample(self, tokens: Sequence[int] = OURS, salt: str | None = None) -> TokenSample:
        packed: Tokens = array("I", tokens)
        blocks = hash_blocks(packed, SIZE, ROOT, [[salt]] if salt else None)
        removed = self.index.applied(W).num_removed
        sample = TokenSample("d1", "m", packed, blocks, SIZE, ROOT, removed, len(tokens))
        self.check.samples[sample.decision] = sample
        return sample


def changed(position: int, *ids: int) -> list[int]:
    return [*OURS[:position], *ids, *OURS[position + 1 :]]


def test_a_prompt_stored_with_our_tokens_agrees() -> None:
    engine = Engine()
    sample = engine.sample()
    engine.store(OURS)
    assert compare(sample, W, engine.index) == (True, None)


def test_blocks_kept_shorter_by_other_layers_count_as_stored() -> None:
    """Hybrid models begin with fewer blocks than full attention has: the tokens are ours."""
    engine = Engine()
    engine.store(OURS[:16])
    state = BlocksStored(
        [1], None, tokens_of([]), SIZE, group_idx=1, spec_kind="mamba"
    )  # of its second block
    engine.index.apply(W, state)
    sample = engine.sample()
    engine.store(OURS, known_blocks=4)
    assert engine.index.overlap(sample.blocks) == {W: 2}
    assert compare(sample, W, engine.index) == (True, None)


@pytest.mark.parametrize("position", [0, 1, 3, 4, 11, 27])
@pytest.mark.parametrize("ids", [(7,), (7, 8)])
def test_the_first_differing_token_is_named(position: int, ids: tuple[int, ...]) -> None:
    engine = Engine()
    sample = engine.sample()
    engine.store(list(range(500, 520)))  # another's prompt
    engine.store(changed(position, *ids))
    is_sure, difference = compare(sample, W, engine.index)
    assert is_sure
    assert difference is not None
    assert difference.position == position
    at = position - difference.start
    assert difference.start == max(position - 3, 0)
    assert difference.ours[at] == OURS[position]
    assert difference.engines[at] == 7
    assert difference.ours[:at] == difference.engines[:at]
    assert len(difference.ours) <= 8


@pytest.mark.parametrize("position", [8, 10, 20])
def test_a_difference_behind_cached_blocks_is_found(position: int) -> None:
    engine = Engine()
    engine.store(OURS[:8])
    sample = engine.sample()
    engine.store([*OURS[:4], *range(900, 920)], known_blocks=1)  # begins as ours does, and is another's
    engine.store(changed(position, 7), known_blocks=2)
    is_sure, difference = compare(sample, W, engine.index)
    assert is_sure
    assert difference is not None
    assert (difference.position, difference.engines[position - difference.start]) == (position, 7)


def test_a_difference_without_a_position_counts() -> None:
    """Blocks of the prompt's prefix were stored earlier, from unknown tokens."""
    engine = Engine()
    engine.store(changed(0, 7)[:8])
    sample = engine.sample()
    engine.store(changed(0, 7), known_blocks=2)
    is_sure, difference = compare(sample, W, engine.index)
    assert is_sure
    assert difference is not None
    assert difference.position is None


def test_evicted_blocks_prove_no_difference() -> None:
    engine = Engine()
    sample = engine.sample()
    engine.store(OURS)
    engine.index.apply(W, BlocksRemoved([6]))
    assert compare(sample, W, engine.index) == (False, None)


def test_prompts_with_other_keys_prove_no_difference() -> None:
    """Old engines publish no salt: the tokens are equal, the hashes are not."""
    engine = Engine()
    sample = engine.sample(salt="tenant")
    engine.store(OURS)
    assert compare(sample, W, engine.index) == (False, None)


def test_missing_events_prove_no_difference() -> None:
    engine = Engine()
    assert compare(engine.sample(), W, engine.index) == (False, None)


def test_equal_tokens_with_another_hash_prove_no_difference() -> None:
    engine = Engine()
    sample = engine.sample()
    end = len(OURS) // SIZE * SIZE
    event = BlocksStored(list(range(7)), None, tokens_of(OURS[:end]), SIZE, [["an adapter"]] * 7)
    engine.index.apply(W, event)
    engine.check.heard(event)
    assert compare(sample, W, engine.index) == (False, None)


def test_a_sample_is_due_once_some_time_after_its_answer() -> None:
    engine = Engine()
    sample = engine.sample()
    assert engine.check.due(1000.0) == []
    engine.check.ended("another", 1, 5.0)
    engine.check.ended("d1", 31, 5.0)
    assert engine.check.due(5.0) == []
    assert engine.check.due(5.0 + SETTLE_S) == [sample]
    assert engine.check.due(1000.0) == []
    assert engine.check.due_s == inf
    assert sample.num_engines == 31


def test_the_time_of_the_next_sample_is_known() -> None:
    check, engine = TokenCheck(worker()), Engine()
    for i, end in enumerate((5.0, 3.0, 4.0)):
        name = f"d{i}"
        check.samples[name] = replace(engine.sample(), decision=name)
        check.ended(name, 31, end)
    assert check.due_s == 3.0 + SETTLE_S
    assert [sample.decision for sample in check.due(4.0 + SETTLE_S)] == ["d1", "d2"]
    assert check.due_s == 5.0 + SETTLE_S
    assert list(check.samples) == ["d0"]


def test_several_differences_raise_the_alarm_and_many_equal_checks_clear_it() -> None:
    checks = CheckResults()
    for _ in range(2):
        checks.add(differs=True)
    assert not checks.is_raised
    checks.add(differs=True)
    assert checks.is_raised
    assert checks.recent >= RAISED
    for _ in range(2 * MEMORY):
        checks.add(differs=False)
    assert not checks.is_raised
    assert checks.recent < CLEARED
    assert (checks.num, checks.num_differing) == (3 + 2 * MEMORY, 3)


def test_one_difference_in_a_hundred_raises_no_alarm() -> None:
    checks = CheckResults()
    for i in range(10 * MEMORY):
        checks.add(differs=i % MEMORY == 0)
        assert not checks.is_raised


def test_new_and_differing_workers_are_sampled_more() -> None:
    check = TokenCheck(worker())
    assert check.wants_samples
    for _ in range(16):
        check.stored.add(differs=False)
    assert not check.wants_samples
    check.counts.add(differs=True)
    assert check.wants_samples
    assert check.differed_lately
    assert not check.is_raised
    assert "raised=False" in repr(check)
