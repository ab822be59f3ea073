"""Workers come first among all options; times and counts of their lifecycle can be turned off."""

import pytest

from gateway.config import by_key, config_of
from gateway.core.errors import ConfigError


def test_workers_come_first_among_all_options() -> None:
    assert list(by_key())[:3] == ["worker", "prefill", "decode"]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("slow_start_s", "-1"),
        ("eject_after_failures", "-1"),
        ("eject_s", "0"),
        ("stalled_after_s", "-1"),
        ("panic_threshold_percent", "101"),
        ("max_ejected_percent", "-1"),
        ("probe_interval_s", "-1"),
        ("disaggregation_prefill_timeout_s", "0"),
    ],
)
def test_a_value_without_meaning_is_rejected(key: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{key.replace('_', '-')}: "):
        config_of(**{key: wrong})


def test_slow_start_and_ejection_can_be_turned_off() -> None:
    found = config_of(slow_start_s="0", eject_after_failures="0", stalled_after_s="0").lifecycle
    assert (found.slow_start_s, found.eject_after_failures, found.stalled_after_s) == (0.0, 0, 0.0)
