"""Names and ranks that a worker may declare, and those that it may not."""

import pytest

from gateway.core.engine import ModelInfo
from gateway.discovery.bounds import MAX_MODELS, MAX_NAME_CHARS, MAX_RANKS, MAX_SERVED, ranks_refusal, usable


def test_ordinary_names_are_used_as_they_are() -> None:
    models = [ModelInfo("org/model-7b"), ModelInfo("日本語", root="/models/x y"), ModelInfo("a", parent="m")]
    assert usable(models).models == tuple(models)
    assert not usable(models).refusal


@pytest.mark.parametrize("name", ["", "a\nb", "a\r", "\x1b[31m", "\u2028", "x" * (MAX_NAME_CHARS + 1)])
@pytest.mark.parametrize("field", ["id", "root", "parent"])
def test_a_name_that_cannot_be_shown_is_ignored_with_its_model(field: str, name: str) -> None:
    odd = ModelInfo(**{"id": "odd", field: name})
    found = usable([ModelInfo("m"), odd])
    if field != "id" and not name:  # none is given
        assert found.models == (ModelInfo("m"), odd)
    else:
        assert found.models == (ModelInfo("m"),)
        assert found.refusal.startswith("1 have a name that is empty, longer than")


def test_a_name_counts_once() -> None:
    found = usable([ModelInfo("m"), ModelInfo("m", root="other"), ModelInfo("n")])
    assert found.models == (ModelInfo("m"), ModelInfo("n"))
    assert found.refusal == "1 are listed twice"


def test_so_many_models_are_used_and_no_more() -> None:
    found = usable([ModelInfo(f"m{number}") for number in range(MAX_MODELS + 2)])
    assert len(found.models) == MAX_MODELS
    assert found.refusal == f"2 are more than the {MAX_MODELS} that are used of one endpoint"


def test_with_many_ranks_fewer_names_are_used() -> None:
    models = [ModelInfo(f"m{number}") for number in range(100)]
    assert len(usable(models, MAX_RANKS).models) == MAX_SERVED // MAX_RANKS
    assert len(usable(models[:1], 10 * MAX_SERVED).models) == 1


def test_ranks_are_bounded() -> None:
    assert ranks_refusal(MAX_RANKS) is None
    assert ranks_refusal(MAX_RANKS + 1) == (
        f"declares {MAX_RANKS + 1} data-parallel ranks, at most {MAX_RANKS} are used of one endpoint"
    )
