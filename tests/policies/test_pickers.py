import random
from math import inf

import pytest

from gateway.policies import PICKERS
from gateway.policies.framework.contract import run


def counts(name: str, scores: list[float]) -> list[int]:
    picker, rng = PICKERS[name](), random.Random(1)
    picked = [picker.pick(scores, rng) for _ in range(1000)]
    return [picked.count(i) for i in range(len(scores))]


@pytest.mark.parametrize("name", PICKERS)
def test_each_picker_keeps_the_contract_and_shares_among_equals(name: str) -> None:
    assert [result for result in run("picker", PICKERS[name], inf) if result.fault] == []
    assert min(counts(name, [0.5] * 4)) > 180
    assert min(counts(name, [0.0] * 4)) > 180


def test_max_picks_the_best_score() -> None:
    assert counts("max", [0.1, 0.9, 0.8]) == [0, 1000, 0]


def test_weighted_picks_in_proportion_to_scores() -> None:
    none, some, most = counts("weighted", [0.0, 0.25, 0.75])
    assert none == 0 and 200 < some < 300 < most


def test_best_of_two_never_picks_the_worst() -> None:
    worst, middle, best = counts("best_of_two", [0.1, 0.5, 0.9])
    assert worst == 0 and 280 < middle < 390 < best
