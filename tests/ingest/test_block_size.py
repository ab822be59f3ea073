"""The block size of a worker, found in its events."""

import random
from collections.abc import Sequence

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.kv_events import BlocksRemoved, BlocksStored, EngineHash
from gateway.ingest.block_size import MAX_CHANGES, MAX_SINGLES, SizeEvidence


def run(size: int, *names: EngineHash, parent: EngineHash | None = None, **fields: object) -> BlocksStored:
    tokens = tokens_of(range(size * len(names)))
    return BlocksStored(names, parent, tokens, size, **fields)  # type: ignore[arg-type]


class Found(SizeEvidence):
    """Evidence that keeps the sizes which it found."""

    def __init__(self, size: int | None) -> None:
        self.found: list[int] = []
        super().__init__(size, self.found.append)


@pytest.mark.parametrize(
    ("reported", "events", "size", "is_certain"),
    [
        (None, [run(16, 1, 2)], 16, True),
        (None, [run(16, 1)], 16, False),
        (None, [run(16, 1), run(16, 2, parent=1)], 16, True),
        (None, [run(10, 1), run(16, 2)], 16, False),
        (None, [run(10, 1), run(10, 2)], 10, False),
        (None, [run(10, 1), run(16, 2, 3)], 16, True),
        (16, [run(16, 1)], 16, True),
        (16, [run(32, 1)], 32, False),
        (16, [run(256, 1), run(16, 2, 3)], 16, True),
        (32, [run(16, 1, 2)], 16, True),
        (32, [run(16, 1)], 32, False),
        (32, [run(16, 1), run(16, 2, parent=1)], 16, True),
        (32, [run(16, 1), run(16, 2), run(10, 3)], 32, False),
        (32, [run(16, 1), run(16, 2), run(16, 3)], 16, False),
        (32, [run(16, 1), run(16, 1), run(16, 1)], 32, False),
        (32, [run(16, 1), run(16, 2), run(16, 3), run(32, 4, 5)], 32, True),
        (32, [run(16, 1), run(32, 2), run(16, 3), run(16, 4), run(16, 5)], 32, True),
        (16, [run(256, 1, medium="CPU"), run(528, 2, 3, group_idx=1, spec_kind="mamba")], 16, False),
        (None, [BlocksStored([1, 2], None, tokens_of(range(31)), 16), BlocksRemoved([1])], None, False),
        (None, [BlocksStored([1, 2], None, tokens_of([]), 0)], None, False),
    ],
)
def test_events_show_a_block_size(
    reported: int | None, events: Sequence[BlocksStored], size: int | None, is_certain: bool
) -> None:
    """A batch of all events shows the same as a batch for each."""
    whole, each = Found(reported), Found(reported)
    is_new = whole.look(events)
    news = [each.look([event]) for event in events]
    assert (whole.size, whole.is_certain, each.size, each.is_certain) == (size, is_certain, size, is_certain)
    assert is_new == (size != reported)
    assert any(news) or not is_new
    assert whole.found == ([size] if is_new else [])


def test_a_configured_size_is_certain() -> None:
    evidence = SizeEvidence(16)
    assert (evidence.is_certain, repr(evidence)) == (True, "SizeEvidence(16, certain)")
    evidence.forget()
    assert evidence.is_certain


def test_another_engine_process_may_have_another_size() -> None:
    evidence = Found(None)
    assert evidence.look([run(16, 1, 2)])
    evidence.forget()
    assert (evidence.size, evidence.is_certain) == (16, False)
    assert evidence.look([run(32, 1, 2)])
    assert evidence.found == [16, 32]


def test_changes_are_followed_a_few_times_only() -> None:
    evidence = Found(8)
    for number in range(20):
        if not evidence.is_certain:
            evidence.look([run(16 + number, 1, 2)])
        evidence.forget()
    assert len(evidence.found) == MAX_CHANGES + 1


def test_memory_is_bounded() -> None:
    rng, evidence = random.Random(1), Found(1 << 12)
    for name in range(10 * MAX_SINGLES):
        evidence.look([run(rng.randrange(1, 1 << 10), name)])
        assert len(evidence._singles) <= MAX_SINGLES
