"""How workers come and go: what would leave all of them out is refused."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("warm_up_s", "-1"), ("eject_after_failures", "-1"), ("eject_s", "0"), ("stalled_after_s", "-1")],
)
def test_what_means_nothing_is_refused(field: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=field):
        load({field: wrong}, {})


def test_each_can_be_turned_off() -> None:
    config = load({"warm_up_s": "0", "eject_after_failures": "0", "stalled_after_s": "0"}, {})
    assert (config.warm_up_s, config.eject_after_failures, config.stalled_after_s) == (0.0, 0, 0.0)
