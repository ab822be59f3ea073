"""Command line: help, exit codes, messages and the reference pages."""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import gateway.app
from engines.sim.config import add_flags as add_sim_flags
from gateway import __version__, cli
from gateway.agent.config import AgentConfig
from gateway.config import Config
from gateway.config.flags import Parser
from gateway.config.options import options
from gateway.replay.command import add_arguments as add_replay_flags
from gateway.runtime.runnables import Runnable, start_all
from gateway.runtime.tasks import Tasks
from loadtest.fleet import GATEWAY
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the developer's own KVGATE_ variables."""
    for name in list(os.environ):
        if name.startswith("KVGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "400")
    yield


def exit_of(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


@pytest.mark.parametrize("command", ["serve", "check"])
def test_help_lists_every_option_with_its_default(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(command, "--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in options(Config):
        if option.has_flag:
            assert f"{option.help_with_default} {option.variable}" in text
            assert f" {option.flag}" in text


@pytest.mark.parametrize("command", ["serve", "check"])
def test_short_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"kvgate {command} --help-all" in text and "--worker URL" in text
    assert len(text.splitlines()) < 40


def test_help_of_a_boolean_shows_both_flags(capsys: pytest.CaptureFixture[str]) -> None:
    exit_of("serve", "--help-all")
    assert "--log-requests, --no-log-requests" in capsys.readouterr().out


def test_kvgate_without_a_command_prints_a_short_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2  # 0 on a terminal
    text = capsys.readouterr().out
    assert "kvgate demo" in text and "kvgate serve --worker" in text and len(text.splitlines()) < 15


def test_version_is_printed_and_unknown_arguments_get_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_of("--version") == 0
    assert capsys.readouterr().out.startswith(f"kvgate {__version__} (interpreted, ")
    for wrong in (("--prot", "1"), ("--prot=1",)):
        assert exit_of("serve", *wrong) == 2
        assert capsys.readouterr().err == "kvgate serve: there is no --prot; did you mean --port?\n"
    assert exit_of("policy", "test", "a.py", "b.py") == 2
    assert capsys.readouterr().err == "kvgate policy test: there is no b.py; see kvgate policy test --help\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["srve", "--worker", "http://a:1"], "kvgate: there is no command srve; did you mean serve?"),
        (["policy", "tets"], "kvgate policy: there is no command tets; did you mean test?"),
        (["sim", "--prot", "1"], "kvgate sim: there is no --prot; did you mean --port?"),
        (["replay", "--polcy", "x"], "kvgate replay: there is no --polcy; did you mean --policy?"),
        (["status", "--gatway", "x"], "kvgate status: there is no --gatway; did you mean --gateway?"),
    ],
)
def test_a_misspelt_command_or_flag_is_answered_with_the_nearest(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of(*arguments) == 2
    assert capsys.readouterr().err == f"{words}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    exit_of("--help")
    text = capsys.readouterr().out
    assert [
        c for c in ("serve", "check", "index", "explain", "policy", "sim", "demo", "options") if c not in text
    ] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "x"], "kvgate: --port: 'x' is not a whole number"),
        (["serve", "--config", "no.toml"], "kvgate: no.toml: cannot be read"),
        (
            ["check", "--policy", "best"],
            "kvgate: policy: there is no policy 'best'; known: expected_ttft, ",
        ),
        (["check", "--worker", "10.0.0.1:8000"], "kvgate: worker: '10.0.0.1:8000' is not an http(s) URL"),
        (["check", "--tokenizer", "./no/dir"], "kvgate: tokenizer: ./no/dir is not a directory"),
    ],
)
def test_invalid_configuration_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(words)
    assert err.count("\n") == 1


def test_unknown_variable_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVGATE_PROT", "1")
    assert cli.main(["check"]) == 2
    assert "KVGATE_PROT is not an option" in capsys.readouterr().err


def test_flags_reach_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Config] = []

    async def check(config: Config, *, is_dry_run: bool) -> int:
        seen.append(config)
        return 1

    monkeypatch.setattr("gateway.commands.check_run.check", check)
    path = tmp_path / "x.toml"
    path.write_text("[proxy]\nmax_attempts = 7")
    flags = ["--worker", "http://a:1", "--worker", "http://b:1", "--no-log-requests", "--head-timeout-s", "3"]
    assert cli.main(["check", "--config", str(path), *flags]) == 1
    (config,) = seen
    assert config.fleet.worker == ["http://a:1", "http://b:1"]
    assert (config.log.requests, config.server.head_timeout_s, config.proxy.max_attempts) == (False, 3.0, 7)


@pytest.mark.parametrize(("given", "level"), [([], "WARNING"), (["--log-level", "debug"], "DEBUG")])
def test_check_logs_warnings_only_unless_a_level_is_given(
    given: list[str], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(cli, "set_up", lambda level, form: seen.append(level.upper()))
    assert cli.main(["check", *given]) == 0
    assert seen == [level]


def test_check_without_workers_validates_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check"]) == 0
    assert "the configuration is valid" in capsys.readouterr().out


def test_simulated_engine_has_its_own_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def simulate(arguments: list[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setattr(gateway.app, "simulate", simulate)
    assert cli.main(["sim", "--port", "0", "--help"]) == 3
    assert seen == [["--port", "0", "--help"]]


def test_event_loop_is_uvloop() -> None:
    async def is_uvloop() -> int:
        return int(isinstance(asyncio.get_running_loop(), uvloop.Loop))

    main: Coroutine[Any, Any, int] = is_uvloop()
    assert cli.run(lambda: main) == 1


@pytest.mark.parametrize("name", ["options", "metrics"])
def test_committed_reference_page_is_current(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name]) == 0
    assert capsys.readouterr().out == (DOCS / "reference" / f"{name}.md").read_text(), "run `make docs`"


def test_help_of_the_agent_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("agent", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in options(AgentConfig):
        default = "none" if option.default == "" else option.default
        assert f"{option.help} Default: {default}" in text
        assert option.flag in text


def test_invalid_agent_option_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "--listen", "7070"]) == 2
    assert "kvgate: --listen: '7070' is not HOST:PORT" in capsys.readouterr().err


def test_grpc_is_not_imported_by_the_gateway() -> None:
    """Importing gRPC takes 20 MB."""
    late = "{'grpc', 'google'} & sys.modules.keys()"
    code = f"import sys, gateway.app, gateway.commands.serve; sys.exit(bool({late}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(60))


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [["options"], ["metrics"], ["--help"], ["serve", "--help-all"], ["replay", "--formats"],
     ["policy", "list"], []],
    ids=["options", "metrics", "help", "help-all", "formats", "list", "first-page"],
)  # fmt: skip
def test_output_without_a_reader_ends_a_command_without_a_traceback(arguments: list[str]) -> None:
    """The same happens after `kvgate status | head -1`. The status is that of a process that SIGPIPE ended;
    argparse ignores the error for `--help`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*GATEWAY, *arguments],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=patience(60),
        env=clean_environment(),
    )
    os.close(write_end)
    assert done.stderr == ""
    assert done.returncode == (0 if "--help" in " ".join(arguments) else 128 + signal.SIGPIPE)


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["options"], ["replay", "--formats"]], ids=["options", "formats"])
def test_output_without_room_is_named(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*GATEWAY, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience(60),
            env=clean_environment(),
        )
    assert done.stderr == "kvgate: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("cause", "reason"), [(OSError(28, "full"), "No space left on device"), (KeyError("x"), "'x'")]
)
def test_a_part_that_does_not_start_is_named(
    cause: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class JournalPart(Runnable):
        async def start(self, tasks: Tasks) -> None:
            raise cause

    monkeypatch.setattr(cli, "_serve", lambda args: asyncio.run(start_all([JournalPart()])))
    assert cli.main(["serve"]) == 1
    reported = capsys.readouterr().err
    assert reported.endswith(f"kvgate: the journal part did not start: {reason}\n")
    assert ("Traceback" in reported) == isinstance(cause, KeyError)


MISTAKES = {
    "policy-file": ["serve", "--policy-file", "/no/where"],
    "policy-test": ["policy", "test", "/no/where"],
    "config": ["serve", "--config", "/no/where"],
    "key-file": ["serve", "--port", "0", "--admin-port", "0", "--key-file", "/no/where"],
    "record": ["serve", "--worker", "http://127.0.0.1:9", "--port", "0", "--record", "/no/where"],
    "profile": ["replay", "t", "--profile", "/no/where.toml"],
    "trace": ["replay", "/no/where"],
    "redis": ["index", "show", "--redis", "redis://127.0.0.1:9"],
    "status": ["status", "--gateway", "http://127.0.0.1:9"],
    "why": ["why", "x", "--gateway", "http://127.0.0.1:9"],
    "adapter": ["adapter", "list", "--gateway", "http://127.0.0.1:9"],
}


@pytest.mark.parametrize("arguments", list(MISTAKES.values()), ids=list(MISTAKES))
def test_causes_are_in_words_without_numbers_of_the_system(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert "No such file or directory" in err or "Connection refused" in err
    assert not re.search(r"Errno|Error \d|Connect call failed|ssl:default|Traceback", err), err


def durations_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Flags of a parser and of its commands that are read as numbers of seconds."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from durations_of(command)
        elif action.dest.endswith("_s") and not action.dest.endswith("_per_s") and action.type:
            yield action


def test_each_flag_that_is_a_duration_takes_units() -> None:
    """Flags of a configuration have no type here: `tests/config/test_options.py` reads them."""
    replay, sim = Parser(), Parser()
    add_replay_flags(replay)
    add_sim_flags(sim)
    found = [each for parser in (cli._parser(), replay, sim) for each in durations_of(parser)]
    assert {"timeout_s", "wait_s", "slo_ttft_s", "event_delay_s", "lease_s"} <= {each.dest for each in found}
    for each in found:
        assert callable(each.type) and each.type("1500ms") == 1.5, each.dest
