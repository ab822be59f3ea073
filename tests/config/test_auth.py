"""Options of who may ask, as they are written in a file."""

from pathlib import Path

import pytest

from gateway.config import Config, load
from gateway.core.errors import ConfigError


def test_nobody_needs_a_key_unless_it_is_said() -> None:
    config = Config()
    assert (config.key_file, config.admin_key, config.tenant_salt) == ("", "auto", False)
    assert not config.pass_client_key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key_file = 'k'\nadmin_key = 'some'", ["admin_key", "all, api, auto, changes or off"]),
        ("jwt_algorithms = ['HS256']", ["jwt_algorithms: 'HS256' is none of RS256"]),
        ("jwt_algorithms = ['none']", ["jwt_algorithms: 'none'"]),
        ("trust_headers_from = ['here']", ["trust_headers_from"]),  # what comes before is still looked at
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_flags_and_variables() -> None:
    config = load({"key_file": "k", "tenant_salt": True}, {"KVGATE_TENANT_SALT_FILE": "s"})
    assert (config.key_file, config.tenant_salt, config.tenant_salt_file) == ("k", True, "s")
