"""Comparison of our tokens of the probes with a worker's, and of two workers' tokens."""

from collections.abc import Sequence

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.parity.comparison import ParityComparison, first_difference, parity_difference
from gateway.parity.probes import PAIR_PROBES, PROBES

OURS = [1, 2, 3]


def text(model: str, ids: Sequence[int]) -> str:
    assert model == "m"
    return f"text of {len(ids)}"


def ours(request: InferenceRequest) -> Prompt:
    return Prompt((tokens_of(OURS),), "fake")


def test_equal_tokens_have_no_difference() -> None:
    comparison = ParityComparison("m", ours, text)
    for probe in PROBES:
        comparison.add(probe, OURS)
    result = comparison.result()
    assert (result.num_compared, result.difference) == (len(PROBES), None)
    assert result.made == {probe.name: OURS for probe in PROBES}
    assert repr(comparison) == "ParityComparison(m, 20 compared, difference=None)"


def test_the_first_difference_is_reported() -> None:
    comparison = ParityComparison("m", ours, text)
    for probe, theirs in zip(PROBES, (OURS, [1, 2, 4], [7]), strict=False):
        comparison.add(probe, theirs)
    words = comparison.result().difference
    assert words and f"in {PROBES[1].name} from token 2 on, [3] 'text of 1' here and [4] " in words


def test_prompts_without_local_tokens_are_not_compared() -> None:
    blind = ParityComparison("m", lambda request: Prompt((), "failed"), text)
    blind.add(PROBES[0], [7])
    assert (blind.result().num_compared, blind.result().difference) == (0, None)


def test_chats_of_a_renderer_without_them_are_not_compared() -> None:
    comparison = ParityComparison("m", ours, text, with_chats=False)
    for probe in PROBES[:2]:
        comparison.add(probe, [7] if probe.is_chat else OURS)
    assert (comparison.result().num_compared, comparison.result().difference) == (1, None)


@pytest.mark.parametrize(
    ("first", "second", "at"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_first_difference(first: list[int], second: list[int], at: int | None) -> None:
    assert first_difference(first, second) == at


def test_two_workers_are_compared_in_the_probes_that_both_answer() -> None:
    text, chat = (probe.name for probe in PAIR_PROBES)
    first, other = {text: [1, 2], chat: [1, 2, 3]}, {text: [1, 2], chat: [1, 2, 4]}
    assert parity_difference(first, first) is None
    words = parity_difference(first, other)
    assert words == "in a chat with tools they differ from token number 2 on, [3] and [4]"
    assert parity_difference(first, {text: other[text]}) is None
    assert parity_difference(first, {chat: other[chat]}) == words
    assert parity_difference({}, other) is None
