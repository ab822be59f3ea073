"""Command `kvgate completion`: prints a script with which a shell completes commands, flags and values."""

import argparse
from collections.abc import Iterator

import shtab

from gateway.app import simulator_parser
from gateway.config import by_key
from gateway.policies import COMPOSITIONS, POLICIES
from gateway.replay.command import replay_parser

NAMED = dict.fromkeys(("policy", "policy_shadow"), [*POLICIES, *COMPOSITIONS])
"""Values by the argument's name, where more are taken than those that ship."""
FILES = ("FILE", "DIR", "PATH", "FILE|NAME")
"""Words in the help for values that are files."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script of a shell. The parser is changed: it gets the values that are completed, and the
    flags of commands with a command line of their own."""
    commands = _commands(parser)
    commands["sim"], commands["replay"] = simulator_parser(), replay_parser()
    for action in _arguments(parser):
        option = by_key().get(action.dest)
        action.choices = (option.choices if option else ()) or action.choices or NAMED.get(action.dest)
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = (each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return next(found, {})


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument of a parser and of its commands."""
    yield from (each for each in parser._actions if not isinstance(each, argparse._SubParsersAction))
    for command in _commands(parser).values():
        yield from _arguments(command)
