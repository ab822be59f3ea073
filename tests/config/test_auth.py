"""Options of clients' credentials, as they are written in a file."""

from pathlib import Path

import pytest

from gateway.config import config_of, load
from gateway.core.errors import ConfigError


def test_clients_need_no_key_by_default() -> None:
    auth = config_of().auth
    assert (auth.key_file, auth.tenant_salt_file, auth.pass_client_key) == ("", "", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[jwt]\nalgorithms = ['HS256']", ["jwt_algorithms: 'HS256' is not one of RS256"]),
        ("[jwt]\nalgorithms = ['none']", ["jwt_algorithms: 'none'"]),
        ("[auth]\nkey_files = 'k'", ["unknown option `key_files` - at `auth`; did you mean key_file?"]),
    ],
)
def test_a_mistake_is_rejected_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_options_come_from_flags_and_variables() -> None:
    auth = load({"key_file": "k"}, {"KVGATE_TENANT_SALT_FILE": "s"}).auth
    assert (auth.key_file, auth.tenant_salt_file) == ("k", "s")
