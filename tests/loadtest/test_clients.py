"""Comparison of clients' results: equal ones, and differences that it finds."""

import pytest

from loadtest.clients import difference, plain
from loadtest.fleet import SIM_READY, first_match, running


def piece(text: str, **more: object) -> dict[str, object]:
    return {"id": "x1", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def test_the_splitting_of_a_text_is_irrelevant() -> None:
    first, second = (
        [piece("ab"), piece("c"), piece("", usage=3)],
        [piece("a"), piece("bc"), piece("", usage=3)],
    )
    assert plain(first) == plain(second) != plain([*second, piece("d")])


def test_content_and_order_of_a_text_are_compared() -> None:
    assert plain([piece("a", usage=1), piece("b")]) != plain([piece("a"), piece("b", usage=1)])
    assert plain({"id": 1, "created": 2, "new_field": 3}) == {"new_field": 3}


@pytest.mark.process
def test_different_answers_are_found() -> None:
    with (
        running("sim", "--port", "0", "--seed", "1") as one,
        running("sim", "--port", "0", "--seed", "2") as two,
    ):
        (first,), (second,) = first_match(one, SIM_READY), first_match(two, SIM_READY)
        for call in (("openai", "chat streamed"), ("anthropic", "message")):
            assert difference(first, first, *call) is None
        (model,) = (m for m in (difference(first, second, "openai", "completion"),) if m)
        assert model.startswith("openai: completion: ")
