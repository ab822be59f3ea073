"""`kvgate config`: the options in effect, and every mistake of a configuration at once."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from gateway import cli
from gateway.config import Config, load
from gateway.config.reading import convert

WORKERS = ("--worker", "http://10.0.0.1:8000#events_port=5558")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KVGATE_PORT", "8081")


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["config", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_options_in_effect_are_printed_as_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kvgate.toml").write_text("[server]\nport = 1\ndrain_timeout_s = 5.0\n")
    code, text, _ = ran(capsys, "print", "--config", str(tmp_path / "kvgate.toml"), *WORKERS)
    assert code == 0 and "port = 8081  # environment: KVGATE_PORT\n" in text
    assert f"drain_timeout_s = 5.0  # {tmp_path}/kvgate.toml\n" in text
    flags = {"worker": [WORKERS[1]], "port": 8081, "drain_timeout_s": 5.0}
    read_again = convert(tomllib.loads(text), Config, "printed")
    (tmp_path / "again.toml").write_text(text)
    assert load({}, {}, tmp_path / "again.toml") == load(flags, {})
    assert read_again.fleet.worker == [WORKERS[1]]


def test_given_options_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = ran(
        capsys, "print", "--given", "--format", "json", "--redis", "redis://:pass@h", *WORKERS
    )
    shown = json.loads(text)
    assert (code, list(shown)) == (0, ["fleet.worker", "server.port", "redis.url"])
    assert shown["fleet.worker"] == {"value": [WORKERS[1]], "source": "flag", "name": "--worker"}
    assert "pass" not in text


@pytest.mark.parametrize("action", ["print", "test"])
def test_every_mistake_of_every_source_is_named(
    action: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kvgate.toml").write_text("[serer]\nport = 1\n[proxy]\nretry_share = 2.0\n")
    wrong = ("--config", str(tmp_path / "kvgate.toml"), "--prot", "1", "--head-timeout-s", "x")
    code, out, err = ran(capsys, action, *wrong)
    assert (code, out) == (2, "")
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["kvgate:"] * 4
    for words in ("there is no --prot", "unknown option `serer`", "proxy.retry_share", "--head-timeout-s"):
        assert words in err


def test_mistakes_of_the_parts_are_named_beside_those_of_the_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = ("--policy", "best", "--tokenizer", "./no/dir", "--port", "x", "--key-file", "/no/where")
    ports = ("--worker", "http://10.0.0.1:8000#vents_port=1")
    code, _, err = ran(capsys, "test", *wrong, *ports)
    assert code == 2 and len(err.splitlines()) == 5
    for words in ("--port: 'x'", "after '#'", "no policy 'best'", "./no/dir is not", "/no/where"):
        assert words in err


def test_a_valid_configuration_passes_without_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "test", *WORKERS) == (0, "the configuration is valid\n", "")
