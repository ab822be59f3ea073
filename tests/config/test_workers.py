"""Options of workers: a value that would exclude all of them is rejected."""

from pathlib import Path

import pytest

from gateway.config import Config, config_of, load
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
def test_a_wrong_option_of_workers_is_rejected(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load({}, {}, file)


def test_networks_of_workers_may_be_directories_of_sockets() -> None:
    table = config_of(worker_networks=["10.0.0.0/8", "/run/vllm"]).worker
    assert (table.ip_networks, table.socket_dirs) == (["10.0.0.0/8"], ["/run/vllm"])
    assert config_of().worker.socket_dirs == []


def test_keys_of_workers_are_set_in_a_file_only() -> None:
    """Keys belong to a table of the file: `ps` shows `argv`."""
    assert next(each for each in options(Config) if each.name == "workers").is_table
