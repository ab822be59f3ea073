"""The options in effect: sources, secrets, and files that read as the same configuration."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, by_key, read
from gateway.config.effective import effective_options, json_values, toml_lines, without_secrets
from gateway.config.options import options
from gateway.config.reading import ConfigErrors, ConfigReader, convert

FILE = """
[server]
port = 8080
drain_timeout_s = 5.0
[log]
level = "debug"
[tenants."a \\u202e b"]
weight = 2.0
[models."org/name"]
aliases = ["x"]
[policy]
ab = { least_load = 1.0, random = 0.5 }
"""


@pytest.fixture
def reader(tmp_path: Path) -> ConfigReader[Config]:
    (tmp_path / "kvgate.toml").write_text(FILE)
    flags = {"worker": ["http://10.0.0.1:8000"], "port": "9000"}
    return read(flags, {"KVGATE_PORT": "8081", "KVGATE_LOG_LEVEL": "info"}, tmp_path / "kvgate.toml")


def test_the_source_of_an_option_is_the_last_that_gives_it(reader: ConfigReader[Config]) -> None:
    path = reader.sources["drain_timeout_s"].name
    values = json_values(effective_options(reader))
    assert path.endswith("/kvgate.toml")
    assert values["server.port"] == {"value": 9000, "source": "flag", "name": "--port"}
    assert values["log.level"] == {"value": "info", "source": "environment", "name": "KVGATE_LOG_LEVEL"}
    assert values["server.drain_timeout_s"] == {"value": 5.0, "source": "file", "name": path}
    assert values["redis.timeout_s"] == {"value": 1.0, "source": "default", "name": "default"}
    assert list(values) == [each.path for each in options(Config)]


def test_what_has_its_default_can_be_left_out(reader: ConfigReader[Config]) -> None:
    given = {each.option.key for each in effective_options(reader, given_only=True)}
    assert given == reader.sources.keys() == {
        *("port", "drain_timeout_s", "log_level", "tenants", "models", "policy_ab", "worker")
    }  # fmt: skip


@pytest.mark.parametrize("given_only", [False, True])
def test_the_lines_are_a_file_of_the_same_configuration(
    given_only: bool, reader: ConfigReader[Config]
) -> None:
    text = "\n".join(toml_lines(effective_options(reader, given_only=given_only)))
    assert "\u202e" not in text
    assert convert(tomllib.loads(text), Config, "printed") == reader.made()
    assert "port = 9000  # --port" in text
    assert 'level = "info"  # environment: KVGATE_LOG_LEVEL' in text


def test_secret_options_are_not_shown() -> None:
    secrets = [each for each in by_key().values() if each.is_secret]
    assert [each.key for each in secrets] == ["redis"]
    secret = read({"redis": "redis://:pass-w0rd@h"}, {})
    shown = list(effective_options(secret))
    assert json_values(shown)["redis.url"] == {"is_secret": True, "source": "flag", "name": "--redis"}
    text = "\n".join(toml_lines(shown))
    assert "# url is set, and not shown  # --redis" in text and "pass-w0rd" not in text
    assert json_values(effective_options(read({}, {})))["redis.url"]["value"] == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://user:pass@h:1/x", "https://***@h:1/x"),
        ("https://idp/keys?a=1&api_key=k1&b=2", "https://idp/keys?a=1&api_key=***&b=2"),
        ("kubernetes://ns/service?port=1", "kubernetes://ns/service?port=1"),
        ("mail@h", "mail@h"),
        (["http://t@h"], ["http://***@h"]),
        ({"http://t@h": {"key_file": "f", "agent": None}}, {"http://***@h": {"key_file": "f"}}),
        (1.5, 1.5),
    ],
)
def test_secrets_in_urls_are_replaced(value: Any, shown: Any) -> None:
    assert without_secrets(value) == shown


def test_a_configuration_with_mistakes_has_no_options_in_effect() -> None:
    with pytest.raises(ConfigErrors) as caught:
        list(effective_options(read({"port": "x", "redis_timeout_s": "y"}, {})))
    assert len(caught.value.mistakes) == 2
