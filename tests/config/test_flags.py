"""Flags of a command: values, unknown and old names, short and full help."""

import argparse
from typing import Any

import pytest

from gateway.config import Config, by_key, old_config_name
from gateway.config.flags import Parser, ShortHelp, add_flags


def parser(**options: Any) -> Parser:
    made = Parser(prog="kvgate serve", add_help=False)
    made.old_name = old_config_name
    made.add_argument("--help", action=ShortHelp, struct=Config)
    made.add_argument("--help-all", action="help")
    add_flags(made, Config, **options)
    return made


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_values_are_by_key() -> None:
    given = parser().parse_args(
        ["--redis-timeout-s", "2", "--worker", "a", "--worker", "b", "--no-log-requests"]
    )
    assert (given.redis_timeout_s, given.worker, given.log_requests) == ("2", ["a", "b"], False)
    assert given.port is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prot", "1"], "there is no --prot; did you mean --port?"),
        (["--prot=1"], "there is no --prot; did you mean --port?"),
        (["--zz"], "there is no --zz; see kvgate serve --help"),
        (["--verify", "off"], "--verify is now --usage-injection"),
        (["--tenant-salt"], "--tenant-salt was removed: --tenant-salt-file alone turns salts on"),
        (["--no-probe-tokens"], "--no-probe-tokens is now --no-tokenizer-probe"),
        (["--admin-key", "all"], "--admin-key is now --admin-auth"),
        (["--worker-socket-dirs", "/run"], "--worker-socket-dirs is now --worker-networks"),
        (
            ["--pool-idle-s", "2"],
            "--pool-idle-s is now pool_idle_s in [proxy] of a file (--config), or KVGATE_POOL_IDLE_S",
        ),
    ],
)
def test_an_unknown_flag_is_answered_with_a_similar_one(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *arguments) == [f"kvgate serve: {words}"]


def test_every_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(refused(capsys, "--prot", "1", "--verify", "off")) == 2


def test_mistakes_are_collected_where_all_are_reported() -> None:
    kept = parser()
    kept.keeps_mistakes = True
    assert kept.parse_args(["--ab", "a=1", "--port", "1"]).mistakes == ["--ab is now --policy-ab"]


def test_short_help_lists_ten_options_and_points_to_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    text = capsys.readouterr().out
    flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert len(flags) == 10 and {"--worker", "--config", "--redis"} <= set(flags)
    assert "kvgate serve --help-all" in " ".join(text.split())


def test_short_help_lists_what_the_command_adds(capsys: pytest.CaptureFixture[str]) -> None:
    made = parser()
    made.add_argument("--dry-run", action="store_true", help="send nothing")
    with pytest.raises(SystemExit):
        made.parse_args(["--help"])
    text = capsys.readouterr().out
    assert "options of this command:\n  --dry-run" in text and "--help-all" in text


def test_full_help_lists_all_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help-all"])
    text = capsys.readouterr().out
    assert [each.flag for each in by_key().values() if each.has_flag and f"  {each.flag}" not in text] == []
    assert "[redis] State that gateways share:" in text
    assert "--pool-idle-s" not in text


def test_a_command_may_have_the_flags_of_some_tables() -> None:
    few = argparse.ArgumentParser()
    add_flags(few, Config, tables=["redis"])
    assert few.parse_args(["--redis-prefix", "x"]).redis_prefix == "x"
    with pytest.raises(SystemExit):
        few.parse_args(["--port", "1"])
