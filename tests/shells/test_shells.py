"""Completion scripts in the real zsh and fish."""

import os
import subprocess
from pathlib import Path

import pytest

from gateway import cli
from gateway.commands.completion import script
from tests.support.patience import patience

pytestmark = pytest.mark.shells

ROOT = Path(os.environ.get("SHELLS", ".cache/shells")).absolute() / "root"


def lines_of(tmp_path: Path, binary: str, *arguments: str) -> list[str]:
    """Lines that a shell prints."""
    share = ROOT / "usr/share"
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "LD_LIBRARY_PATH": str(ROOT / "usr/lib/x86_64-linux-gnu"),
        "FPATH": ":".join(str(path.parent) for path in share.glob("zsh/functions/**/comp*")),
    }
    command = [str(ROOT / binary), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kvgate ser", ["serve"]),
        ("kvgate config ", ["print", "test"]),
        ("kvgate serve --log-level ", ["debug", "error", "info", "warning"]),
        ("kvgate serve --tls-", ["--tls-cert-file", "--tls-key-file"]),
    ],
)
def test_fish_offers_commands_flags_and_values(tmp_path: Path, line: str, expected: list[str]) -> None:
    (tmp_path / "kvgate.fish").write_text(script(cli._parser(), "fish"))
    asked = f"source {tmp_path}/kvgate.fish; complete -C '{line}'"
    found = lines_of(tmp_path, "usr/bin/fish", "--no-config", "-c", asked)
    assert [each.partition("\t")[0] for each in found] == expected


def test_zsh_reads_the_script_and_completes_by_it(tmp_path: Path) -> None:
    (tmp_path / "_kvgate").write_text(script(cli._parser(), "zsh"))
    assert lines_of(tmp_path, "bin/zsh", "-n", str(tmp_path / "_kvgate")) == []
    modules = ROOT / "usr/lib/x86_64-linux-gnu/zsh/5.9"
    found = f"module_path=({modules}); fpath=({tmp_path} $fpath)"
    asked = f"{found}; autoload -Uz compinit; compinit -u -D; print $_comps[kvgate]"
    assert lines_of(tmp_path, "bin/zsh", "-f", "-c", asked) == ["_kvgate"]
