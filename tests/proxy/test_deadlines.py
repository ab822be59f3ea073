import pytest

from gateway.config.proxy import ProxySection
from gateway.proxy.deadlines import is_total_over, time_left


def timeouts(first_byte_s: float = 0, idle_s: float = 600, total_s: float = 0) -> ProxySection:
    return ProxySection(first_byte_timeout_s=first_byte_s, idle_timeout_s=idle_s, total_timeout_s=total_s)


@pytest.mark.parametrize(
    ("limits", "has_answer", "left"),
    [
        (timeouts(0, 600, 0), True, 590),
        (timeouts(0, 600, 0), False, 600),
        (timeouts(5, 600, 0), False, -5),
        (timeouts(5, 600, 0), True, 590),
        (timeouts(0, 0, 0), True, None),
        (timeouts(0, 0, 0), False, None),
        (timeouts(0, 600, 100), True, 60),
        (timeouts(0, 0, 40), False, 0),
    ],
)
def test_the_nearest_timeout_counts(limits: ProxySection, has_answer: bool, left: float | None) -> None:
    assert time_left(limits, 1040, started=1000, last_activity=1030, has_answer=has_answer) == left


def test_the_total_timeout_is_exceeded_or_not_set() -> None:
    assert is_total_over(timeouts(total_s=10), 1010, 1000)
    assert not is_total_over(timeouts(total_s=10), 1009, 1000)
    assert not is_total_over(timeouts(), 1e9, 0)
