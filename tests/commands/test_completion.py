"""Completion of commands, flags and values, asked of a real bash; tests/shells asks zsh and fish."""

import argparse
import subprocess
from pathlib import Path

import pytest

from gateway import cli
from gateway.commands.completion import script
from gateway.config import by_key
from tests.support.patience import patience

ASK = r"""
set -u
source "$1"
shift
cd "$1"
shift
function_of=$(complete -p kvgate | sed -E 's/.*-F ([^ ]+).*/\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function_of"
printf '%s\n' "${COMPREPLY[@]-}"
"""
"""Script that completes the last of its words as bash does at a tab, and prints what bash would offer."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the script of each shell, as `kvgate completion` prints it."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(script(cli._parser(), shell))
    (folder / "kvgate.toml").touch()
    return folder


def offered(scripts: Path, *words: str) -> list[str]:
    command = ["bash", "--norc", "-c", ASK, "bash", str(scripts / "bash"), str(scripts), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(20))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ser"], ["serve"]),
        (["config", ""], ["print", "test"]),
        (["config", "print", "--format", ""], ["toml", "json"]),
        (["serve", "--tls-"], ["--tls-cert-file", "--tls-key-file"]),
        (["serve", "--log-level", ""], ["debug", "error", "info", "warning"]),
        (["serve", "--port", "1", "--policy", "expe"], ["expected_ttft"]),
        (["serve", "--config", "kv"], ["kvgate.toml"]),
        (["sim", "--prefill-"], ["--prefill-tokens-per-s"]),
        (["replay", "kv"], ["kvgate.toml"]),
        (["replay", "--spe"], ["--speed"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
    ids=" ".join,
)
def test_bash_offers_commands_flags_values_and_files(
    scripts: Path, words: list[str], expected: list[str]
) -> None:
    assert offered(scripts, "kvgate", *words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_flag_is_in_the_script(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    flags = [each.flag for each in by_key().values() if each.has_flag]
    wanted = [flag.removeprefix("--") if shell == "fish" else flag for flag in flags]
    (commands,) = (
        each.choices for each in cli._parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    assert [each for each in [*commands, *wanted] if each not in text] == []
    assert "%%" not in text and "==SUPPRESS==" not in text


@pytest.mark.process
def test_the_command_prints_the_script(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.rstrip() == (scripts / "bash").read_text().rstrip()
