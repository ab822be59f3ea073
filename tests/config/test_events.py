"""Ports of KV events and of agents exist."""

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("events_port", "65536"), ("events_replay_port", "-1"), ("agent_port", "65536"), ("events", "on")],
)
def test_an_invalid_port_is_rejected(key: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{key.replace('_', '-')}: "):
        config_of(**{key: wrong})


def test_agents_are_optional() -> None:
    config = config_of()
    assert (config.agent.port, config.agent.address, config.events.mode) == (0, [], "auto")
