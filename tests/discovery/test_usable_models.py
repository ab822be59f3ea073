"""Names and ranks of workers: valid, invalid, and beyond the bounds."""

import pytest

from gateway.core.engine import ModelInfo
from gateway.discovery.usable_models import (
    MAX_MODELS,
    MAX_NAME_CHARS,
    MAX_RANKS,
    MAX_SERVED,
    ranks_refusal,
    usable,
)


def test_ordinary_names_are_unchanged() -> None:
    models = [ModelInfo("org/model-7b"), ModelInfo("日本語", root="/models/x y"), ModelInfo("a", parent="m")]
    assert usable(models).models == tuple(models)
    assert not usable(models).refusal


@pytest.mark.parametrize("name", ["", "a\nb", "a\r", "\x1b[31m", "\u2028", "x" * (MAX_NAME_CHARS + 1)])
@pytest.mark.parametrize("field", ["id", "root", "parent"])
def test_a_name_that_cannot_be_printed_is_ignored_with_its_model(field: str, name: str) -> None:
    odd = ModelInfo(**{"id": "odd", field: name})
    found = usable([ModelInfo("m"), odd])
    if field != "id" and not name:  # no parent is reported
        assert found.models == (ModelInfo("m"), odd)
    else:
        assert found.models == (ModelInfo("m"),)
        assert found.refusal.startswith("1 have a name that is empty, longer than")


def test_a_repeated_name_counts_once() -> None:
    found = usable([ModelInfo("m"), ModelInfo("m", root="other"), ModelInfo("n")])
    assert found.models == (ModelInfo("m"), ModelInfo("n"))
    assert found.refusal == "1 are listed twice"


def test_models_beyond_the_bound_are_ignored() -> None:
    found = usable([ModelInfo(f"m{number}") for number in range(MAX_MODELS + 2)])
    assert len(found.models) == MAX_MODELS
    assert found.refusal == f"2 are over the limit of {MAX_MODELS} for one endpoint"


def test_more_ranks_allow_fewer_names() -> None:
    models = [ModelInfo(f"m{number}") for number in range(100)]
    assert len(usable(models, MAX_RANKS).models) == MAX_SERVED // MAX_RANKS
    assert len(usable(models[:1], 10 * MAX_SERVED).models) == 1


def test_ranks_are_bounded() -> None:
    assert ranks_refusal(MAX_RANKS) is None
    assert ranks_refusal(MAX_RANKS + 1) == (
        f"declares {MAX_RANKS + 1} data-parallel ranks, at most {MAX_RANKS} are used of one endpoint"
    )
