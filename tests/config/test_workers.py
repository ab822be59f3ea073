"""How workers come and go: what would leave all of them out is refused."""

from pathlib import Path

import pytest

from gateway.config import Config, load
from gateway.config.options import options
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[worker]\nnetworks = ["here"]', "worker_networks: .*give a network or an address"),
        ('[workers."http://W:1/"]', "is kept as 'http://w:1'; write it so"),
        ('[workers."w:1"]', "workers: 'w:1' is not an http"),
        ('[workers."http://w:1"]\nkey = "sk-1"', "unknown option `key`|unknown field `key`"),
        ('[workers."dns+unix:/x"]', "has no DNS name"),
    ],
)
def test_what_is_said_of_no_worker_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load({}, {}, file)


def test_a_key_does_not_go_into_a_flag() -> None:
    """A table is of a file only: what is in `argv` is in `ps`."""
    assert next(each for each in options(Config) if each.name == "workers").is_table
