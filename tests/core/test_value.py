"""Values: equality, printing and copies by their fields, and constructors in the order of their fields."""

import inspect

import pytest

from gateway.core import decision, speed
from gateway.core.decision import Choice, Query
from gateway.core.speed import TYPICAL, Speed
from gateway.core.value import Value, replace

VALUES = [
    each
    for module in (decision, speed)
    for each in vars(module).values()
    if inspect.isclass(each) and issubclass(each, Value) and each.__module__ == module.__name__
]


def test_values_are_equal_by_their_fields() -> None:
    assert Choice(1, "why", (0.5,)) == Choice(1, "why", (0.5,))
    assert Choice(1, "why") != Choice(2, "why")
    assert Choice(1, "why") != (1, "why", (), None, "")
    assert len({Speed(), Speed(), Speed(token_s=1.0)}) == 2


def test_a_value_prints_its_fields() -> None:
    assert repr(Choice(1, "why")) == "Choice(index=1, reason='why', terms=(), ttft_s=None, policy='')"


def test_a_copy_has_the_changed_fields() -> None:
    assert replace(Query("m", 5), num_tokens=6) == Query("m", 6)
    assert replace(TYPICAL) == TYPICAL
    with pytest.raises(TypeError, match="seats"):
        replace(TYPICAL, seats=3)


@pytest.mark.parametrize("value", VALUES)
def test_fields_are_those_of_the_constructor(value: type[Value]) -> None:
    parameters = inspect.signature(value.__init__).parameters
    assert value.__match_args__ == tuple(parameters)[1:]


def test_all_values_are_found() -> None:
    assert len(VALUES) == 9
