import pytest

from gateway.proxy.deadlines import Deadlines


@pytest.mark.parametrize(
    ("deadlines", "has_answer", "left"),
    [
        (Deadlines(0, 600, 0), True, 590),
        (Deadlines(0, 600, 0), False, 600),
        (Deadlines(5, 600, 0), False, -5),
        (Deadlines(5, 600, 0), True, 590),
        (Deadlines(0, 0, 0), True, None),
        (Deadlines(0, 0, 0), False, None),
        (Deadlines(0, 600, 100), True, 60),
        (Deadlines(0, 0, 40), False, 0),
    ],
)
def test_the_nearest_end_counts(deadlines: Deadlines, has_answer: bool, left: float | None) -> None:
    assert deadlines.left(1040, started=1000, last_activity=1030, has_answer=has_answer) == left


def test_the_total_is_over_or_not_there() -> None:
    assert Deadlines(total_s=10).is_total_over(1010, 1000)
    assert not Deadlines(total_s=10).is_total_over(1009, 1000)
    assert not Deadlines().is_total_over(1e9, 0)
