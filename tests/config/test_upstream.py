"""How workers are reached: times that cannot be zero, ports that exist."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("connect_timeout_s", "0"), ("probe_interval_s", "-1"), ("max_attempts", "0"), ("events_port", "65536")],
)
def test_what_would_reach_nobody_is_refused(field: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=field):
        load({field: wrong}, {})


def test_an_answer_may_take_as_long_as_it_takes_unless_said() -> None:
    config = load({}, {})
    assert (config.first_byte_timeout_s, config.total_timeout_s) == (0.0, 0.0)
    assert config.idle_timeout_s > 0
