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


def test_ports_of_events_may_be_given_with_the_url() -> None:
    config = config_of(
        worker=["http://W:1/#events_port=5558", "http://w:2"],
        prefill=["http://p:1#replay_port=6559&events_port=5559"],
        workers={"http://w:1": {"engine": "vllm", "replay_port": 6558}},
    )
    assert (config.fleet.worker, config.fleet.prefill) == (["http://w:1", "http://w:2"], ["http://p:1"])
    ports = {url: (table.events_port, table.replay_port) for url, table in config.workers.items()}
    assert ports == {"http://w:1": (5558, 6558), "http://p:1": (5559, 6559)}
    assert config.workers["http://w:1"].engine == "vllm"


@pytest.mark.parametrize(
    "text",
    [
        "http://w:1#",
        "http://w:1#5558",
        "http://w:1#events_port=0",
        "http://w:1#events_port=65536",
        "http://w:1#events_port=5558&engine=vllm",
        "http://w:1#events_port=5558#replay_port=1",
    ],
)
def test_other_words_behind_a_url_are_rejected(text: str) -> None:
    with pytest.raises(
        ConfigError, match="worker: .*after '#', give events_port=PORT, replay_port=PORT or both"
    ):
        config_of(worker=[text])
