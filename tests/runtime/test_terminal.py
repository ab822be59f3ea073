"""Output of commands, and that they print nowhere else."""

import ast
import sys

import pytest

from gateway.runtime.terminal import print_json, print_lines
from tests import ROOT

OTHER_PRINTERS = {
    "gateway/runtime/terminal.py",
    "gateway/cli.py",  # pages of the reference
    "gateway/commands/demo.py",  # a fleet of its own
    "gateway/demo/view.py",
}


def test_each_text_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines("worker \x1b[2J\x9b2J", "a\nforged: b\u2028")
    assert capsys.readouterr().out == "worker \\x1b[2J\\x9b2J\na\\nforged: b\\u2028\n"
    print_lines()
    print_lines("a", to=sys.stderr, start="\x1b[H")
    assert capsys.readouterr() == ("", "\x1b[Ha\n")


def test_json_is_printed_with_escapes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": ["\x1b\x9b\u202e"]})
    assert capsys.readouterr().out == '{\n  "a": [\n    "\\u001b\\u009b\\u202e"\n  ]\n}\n'


def test_commands_print_by_one_function() -> None:
    found = [
        f"{name}:{node.lineno}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in OTHER_PRINTERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not found, f"use print_lines or print_json of gateway/runtime/terminal.py: {found}"
