"""The options of who may use the admin port."""

from pathlib import Path

import pytest

from gateway.config import Config, load
from gateway.core.errors import ConfigError


def test_defaults_let_nobody_in_from_elsewhere() -> None:
    config = Config()
    assert (config.admin_host, config.admin_key, config.admin_without_keys) == ("127.0.0.1", "auto", "refuse")
    assert config.admin_allowed_hosts == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("admin_key = 'some'", "all, api, auto, changes or off"),
        ("admin_without_keys = 'yes'", "open, probes or refuse"),
        ("admin_allowed_hosts = ['http://x']", "admin_allowed_hosts: "),
        ("admin_allowed_hosts = ['*']", "admin_allowed_hosts: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    (file := tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match="admin_") as caught:
        load({}, {}, file)
    assert words in str(caught.value)
