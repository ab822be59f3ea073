"""Options of the admin port."""

from pathlib import Path

import pytest

from gateway.config import config_of, load
from gateway.core.errors import ConfigError


def test_defaults_admit_only_the_own_host() -> None:
    admin = config_of().admin
    assert (admin.host, admin.auth, admin.without_keys) == ("127.0.0.1", "auto", "refuse")
    assert admin.allowed_hosts == [] and not admin.load_adapters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auth = 'some'", "all, api, auto, changes or off"),
        ("without_keys = 'yes'", "open, probes or refuse"),
        ("allowed_hosts = ['http://x']", "admin_allowed_hosts: "),
        ("allowed_hosts = ['*']", "admin_allowed_hosts: "),
        ("admin_adapter_timeout_s = 0", "adapter_timeout_s"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, words: str) -> None:
    (file := tmp_path / "c.toml").write_text(f"[admin]\n{text}")
    with pytest.raises(ConfigError, match="admin") as caught:
        load({}, {}, file)
    assert words in str(caught.value)
