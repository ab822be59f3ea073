"""Weights of models, and which rewrite of a name counts."""

from collections import Counter

import pytest

from gateway.core.pool_objects import ModelRewrites, WeightedModels, merged
from gateway.core.worker import ServedModel


def models(*targets: tuple[str, int | None]) -> WeightedModels:
    return WeightedModels.of(targets)


def shares(found: WeightedModels, num: int = 10_000) -> dict[str, float]:
    chosen = Counter(found.choose(b"request %d" % n) for n in range(num))
    return {name: round(count / num, 1) for name, count in chosen.items()}


def test_models_share_requests_by_their_weights() -> None:
    assert shares(models(("a", 90), ("b", 10))) == {"a": 0.9, "b": 0.1}
    assert shares(models(("a", None), ("b", None))) == {"a": 0.5, "b": 0.5}
    assert shares(models(("a", 1_000_000))) == {"a": 1.0}
    assert models(("a", 2), ("b", 3), ("a", 1)).weights == {"a": 3, "b": 3}


def test_a_model_without_a_weight_beside_others_gets_nothing() -> None:
    assert models(("a", None), ("b", 5)).weights == {"b": 5}


def test_the_same_key_chooses_the_same_model() -> None:
    found = models(("a", 1), ("b", 1))
    assert len({found.choose(b"session") for _ in range(10)}) == 1
    assert found.choose(b"x" * 70_000 + b"1") == found.choose(b"x" * 70_000 + b"2")  # the first 64 KiB


@pytest.mark.parametrize(
    ("targets", "words"),
    [([], "has no target"), ([("a", 0)], "has the weight 0"), ([("a", 1_000_001)], "has the weight 1000001")],
)
def test_other_targets_are_refused(targets: list[tuple[str, int | None]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WeightedModels.of(targets)


def test_a_name_goes_before_all_other_names() -> None:
    found = ModelRewrites({"chat": models(("chat-v2", None))}, models(("base", None)))
    assert [found.target(name, b"") for name in ("chat", "x", "chat-v2")] == ["chat-v2", "base", "base"]
    assert ModelRewrites({}).target("x", b"") == "x"


def test_names_are_listed_where_a_target_is_served() -> None:
    split = models(("away", 1), ("m", 1))
    found = ModelRewrites({"chat": split, "gone": models(("away", 1)), "m": models(("n", 1))})
    m, n = ServedModel("m", "root"), ServedModel("n", "n")
    assert found.listed({"m": m, "n": n}) == {"chat": m, "m": m, "n": n}
    assert list(found.listed({"n": n})) == ["m", "n"]


def test_the_first_of_several_counts() -> None:
    first = ModelRewrites({"a": models(("a1", None))})
    second = ModelRewrites({"a": models(("a2", None)), "b": models(("b2", None))}, models(("c", None)))
    found = merged([first, second])
    assert found and [found.target(name, b"") for name in "abx"] == ["a1", "b2", "c"]
    assert merged([]) is None and merged([ModelRewrites({})]) is None
