"""Misspelt commands, flags and values, answered with the nearest one there is."""

from typing import Any

import pytest

from gateway.core.arguments import MAX_LISTED, CommandParser


def parser(num_commands: int = 2) -> CommandParser:
    """Parser of `prog`: `prog show [--pace slow|quick] FILE`, `prog drop`, and more commands."""
    made = CommandParser(prog="prog")
    made.add_argument("--version", action="store_true")
    commands: Any = made.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show")
    show.add_argument("--pace", choices=("slow", "quick"))
    show.add_argument("file")
    for name in ("drop", *(f"other{i}" for i in range(num_commands - 2))):
        commands.add_parser(name)
    return made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shwo"], "prog: there is no command shwo; did you mean show?"),
        (["shwo", "--pase", "x"], "prog: there is no command shwo; did you mean show?"),
        (["zz"], "prog: there is no command zz; there are show, drop"),
        (["--verison"], "prog: there is no --verison; did you mean --version?"),
        (["--pace", "show"], "prog: there is no --pace; see prog --help"),
        (["show", "--pase=slow"], "prog show: there is no --pase; did you mean --pace?"),
        (["show", "--pac", "slow", "f"], "prog show: there is no --pac; did you mean --pace?"),
        (
            ["show", "--pace", "lsow"],
            "prog show: --pace: 'lsow' is not one of slow, quick; did you mean slow?",
        ),
        (["show", "f", "g"], "prog show: there is no g; see prog show --help"),
    ],
)
def test_a_refusal_is_one_line_with_the_nearest_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(arguments)
    assert (caught.value.code, capsys.readouterr().err) == (2, f"{words}\n")


def test_many_commands_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser(MAX_LISTED + 1).parse_args(["zz"])
    assert capsys.readouterr().err == "prog: there is no command zz; see prog --help\n"


def test_what_there_is_passes() -> None:
    given = parser().parse_args(["--version", "show", "--pace", "slow", "--", "--pase"])
    assert (given.version, given.pace, given.file) == (True, "slow", "--pase")


def test_every_unknown_flag_is_named_or_kept(capsys: pytest.CaptureFixture[str]) -> None:
    show = CommandParser(prog="show")
    show.add_argument("--pace")
    with pytest.raises(SystemExit):
        show.parse_args(["--pase", "1", "--zz"])
    assert len(capsys.readouterr().err.splitlines()) == 2
    show.keeps_mistakes = True
    kept = show.parse_args(["--pase", "1", "--pace", "2"])
    assert (kept.mistakes, kept.pace) == (["there is no --pase; did you mean --pace?"], "2")
