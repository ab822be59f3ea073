import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash, Tokens, hash_blocks, tokens_of
from gateway.observability.cache_loss.prompt_similarity import (
    GRAM,
    MIN_SPAN,
    PORTION,
    CacheNamespace,
    EarlierPrompts,
    Similarity,
    common_prefix,
    mark,
)

HERE = CacheNamespace(1, None, 0)


def text(seed: int, num: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(8000) for _ in range(num)]


def marks_of(tokens: Tokens, known: int = 0) -> dict[int, int]:
    marks: dict[int, int] = {}
    for _ in mark(tokens, known, 1, marks):
        pass
    return marks


def see(
    earlier: EarlierPrompts, ids: list[int], known: int = 0, space: CacheNamespace = HERE
) -> Similarity | None:
    """Find a prompt, then add it, as a request does."""
    tokens = tokens_of(ids)
    marks = marks_of(tokens, known)
    found = earlier.find(tokens, known, marks)
    earlier.add(space, tokens, known, hash_blocks(tokens, 16, BlockHash(1)), marks, found)
    return found


def test_text_after_a_changed_beginning_is_found_to_the_token() -> None:
    earlier, head, rest = EarlierPrompts(), text(1, 100), text(2, 500)
    assert see(earlier, [*head, 1, 2, 3, *rest, *text(3, 50)]) is None
    found = see(earlier, [*head, 1, 9, 9, *rest, *text(4, 50)])
    assert found and (found.num_common, found.num_differing) == (101, 2)
    assert [(span.start, span.end) for span in found.spans] == [(103, 603)]


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(0, 40), st.integers(200, 400))
@settings(max_examples=50)
def test_common_text_is_found_behind_any_beginning(seed: int, first: int, second: int, num: int) -> None:
    earlier, rest = EarlierPrompts(), text(seed, num)
    see(earlier, [*text(seed + 1, first), *rest])
    found = see(earlier, [*text(seed + 2, second), *rest])
    assert found and sum(span.end - span.start for span in found.spans) >= num - 1
    assert all(span.end <= second + num for span in found.spans)


def test_common_text_of_several_prompts_is_found() -> None:
    earlier, first, second = EarlierPrompts(), text(1, 300), text(2, 300)
    see(earlier, [7, *first])
    see(earlier, [8, *second])
    found = see(earlier, [9, *second, 9, 9, *first])
    assert found and [(s.start, s.end) for s in found.spans] == [(1, 301), (303, 603)]


def test_equal_text_in_another_space_is_common() -> None:
    earlier, ids = EarlierPrompts(), text(1, 300)
    see(earlier, ids)
    found = see(earlier, ids, space=CacheNamespace(1, "lora", 0))
    assert found and (found.space, found.num_common, list(found.spans)) == (HERE, 300, [])


def test_short_equal_text_is_not_reported() -> None:
    earlier, tail = EarlierPrompts(), text(9, MIN_SPAN - 1)
    see(earlier, [*text(1, 300), *tail])
    found = see(earlier, [*text(2, 300), *tail])
    assert found is None or list(found.spans) == []


def test_new_text_has_no_similar_prompt() -> None:
    earlier = EarlierPrompts()
    assert see(earlier, text(1, 1000)) is None
    assert see(earlier, text(2, 1000)) is None


def test_a_continued_conversation_replaces_its_entry() -> None:
    earlier, ids = EarlierPrompts(), text(1, 320)
    see(earlier, ids)
    for turn in range(2, 6):
        known = len(ids)
        ids = [*ids, *text(turn, 320)]
        see(earlier, ids, known)
    assert earlier.describe()["entries"] == 1
    found = earlier.find(tokens_of([5, *ids]), 0, marks_of(tokens_of([5, *ids])))
    assert found and [(s.start, s.end) for s in found.spans] == [(1, 1 + len(ids))]


def test_known_text_takes_no_more_memory() -> None:
    earlier, rest = EarlierPrompts(), text(1, 500)
    see(earlier, [1, *rest])
    before = earlier.describe()
    for stamp in range(2, 100):
        see(earlier, [stamp, *rest])
    assert earlier.describe() == before


def test_memory_is_bounded_and_the_least_recently_used_is_dropped() -> None:
    earlier = EarlierPrompts(max_bytes=100_000)
    see(earlier, text(0, 500))
    for seed in range(1, 200):
        see(earlier, text(seed, 500))
        see(earlier, [3, *text(0, 500)])
        assert earlier.num_bytes <= 100_000
    kept = earlier.describe()
    assert 5 < kept["entries"] < 100 and kept["bytes"] == sum(e.num_bytes for e in earlier._earlier.values())
    assert len(earlier._by_mark) == sum(len(e.marks) for e in earlier._earlier.values())
    assert see(earlier, [4, *text(0, 500)]) and not see(earlier, [4, *text(1, 500)])


def test_long_prompts_marked_in_portions_equal_the_whole() -> None:
    tokens = tokens_of(text(1, 3 * PORTION))
    portions = list(mark(tokens, 0, 1, {}))
    assert len(portions) == 3
    marks = marks_of(tokens)
    shifted = marks_of(tokens_of([1, 2, 3, *tokens]))
    assert {at + 3 for at in marks.values()} <= set(shifted.values())
    assert 0.5 < len(marks) / (len(tokens) / 16) < 2
    assert all(at + GRAM <= len(tokens) for at in marks.values())


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1], []), ([1, 2], [1, 3]), ([1, 2], [1, 2, 3]), ([2], [1])]
)
def test_common_prefix(first: list[int], second: list[int]) -> None:
    expected = 0
    while expected < min(len(first), len(second)) and first[expected] == second[expected]:
        expected += 1
    assert common_prefix(tokens_of(first), tokens_of(second)) == expected
