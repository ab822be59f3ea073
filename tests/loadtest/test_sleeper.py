from gateway.runtime.loop_lag import INTERVAL_S
from loadtest.sleeper import worst_ms


def test_the_latest_of_all_wakings_is_reported() -> None:
    now, late = 0.0, iter([0.0, 0.007, 0.002])
    left = iter([False, False, False, True])

    def sleep(seconds: float) -> None:
        nonlocal now
        assert seconds == INTERVAL_S
        now += seconds + next(late)

    assert round(worst_ms(lambda: next(left), lambda: now, sleep), 6) == 7.0
