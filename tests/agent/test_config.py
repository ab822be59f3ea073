import argparse

import pytest

from gateway.agent.config import AgentConfig, address_of, load
from gateway.config.flags import add_flags
from gateway.core.errors import ConfigError


def parsed(*arguments: str) -> AgentConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser, AgentConfig)
    return load(vars(parser.parse_args(arguments)))


def test_defaults_are_on_loopback() -> None:
    config = parsed()
    assert config == AgentConfig()
    assert (config.engine_url, config.listen) == ("http://127.0.0.1:8000", "127.0.0.1:7070")


def test_flags_are_read_as_the_types_of_their_fields() -> None:
    config = parsed("--engine-url", "http://e:1", "--replay-port", "6557", "--probe-interval-s", "0.5")
    assert (config.engine_url, config.replay_port, config.probe_interval_s) == ("http://e:1", 6557, 0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "7070"], "--listen: '7070' is not HOST:PORT"),
        (["--events-port", "0"], "--events-port: '0' is not at least 1"),
        (["--probe-interval-s", "inf"], "--probe-interval-s: "),
        (["--log-level", "loud"], "--log-level: Invalid enum value 'loud'"),
        (["--tls-key-file", "x"], "--tls-key-file: needs --tls-cert-file"),
        (["--client-ca-file", "x"], "--client-ca-file: needs --tls-cert-file"),
    ],
)
def test_a_wrong_value_is_rejected_with_its_flag(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        parsed(*arguments)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7070", ("127.0.0.1", 7070)),
        ("[::1]:0", ("::1", 0)),
        ("host.example:65535", ("host.example", 65535)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert address_of(text, "--listen") == address


@pytest.mark.parametrize("text", ["", ":1", "h", "h:", "h:x", "h:65536", "::1:7070", "[]:1"])
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        address_of(text, "--listen")
