"""Flags of the command line and their help, from the declarations of options."""

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from gateway.config.options import Option, options
from gateway.config.reading import FLAG, OldName
from gateway.core.arguments import CommandParser
from gateway.core.durations import seconds_of


class Parser(CommandParser):
    """Parser of a command with options of a configuration: an old flag is answered with its new name."""

    old_name: OldName = staticmethod(lambda key, form: "")

    def mistake(self, flag: str) -> str:
        key = flag.removeprefix("--").replace("-", "_").lower()
        return self.old_name(key, FLAG) or super().mistake(flag)


def add_flags(
    parser: argparse.ArgumentParser,
    struct: type[msgspec.Struct],
    *,
    has_variables: bool = False,
    tables: Collection[str] = (),
) -> None:
    """Add the flags of some tables, or of all; a flag that is not given is None. With `has_variables`, the
    environment is read too, and `--help` names the variables."""
    groups: dict[str, Callable[..., Any]] = {"": parser.add_argument}
    for each in options(struct):
        if not each.has_flag or (tables and each.table not in tables):
            continue
        if each.table not in groups:
            group = parser.add_argument_group(f"[{each.table}] {each.title}")
            groups[each.table] = group.add_argument
        _add(groups[each.table], each, has_variables=has_variables)


def _add(add: Callable[..., Any], option: Option, *, has_variables: bool) -> None:
    text = f"{option.help_with_default} {option.variable}" if has_variables else option.help_with_default
    text = text.replace("%", "%%")
    given: dict[str, Any] = {"dest": option.key, "default": None, "help": text}
    if option.is_bool:
        add(option.flag, action=argparse.BooleanOptionalAction, **given)
    else:
        action = "append" if option.is_list or option.is_map else "store"
        add(option.flag, action=action, metavar=option.metavar, **given)


def seconds(text: str) -> float:
    """Type of a flag for `argparse`: a duration of 0 or more, finite, in seconds."""
    try:
        value = seconds_of(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more, and finite")
    return value


def positive_seconds(text: str) -> float:
    """Type of a flag for `argparse`: a duration of more than 0, finite, in seconds."""
    if not (value := seconds(text)):
        raise argparse.ArgumentTypeError("must be more than 0, and finite")
    return value


class ShortHelp(argparse.Action):
    """`--help` of a command with many options: the most used ones, and where the rest is listed."""

    def __init__(self, option_strings: Sequence[str], dest: str, struct: type[msgspec.Struct]) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="the most used options")
        self._struct = struct

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        short = Parser(prog=parser.prog, usage=parser.usage, description=parser.description, add_help=False)
        group = short.add_argument_group("most used options")
        group.add_argument("--config", metavar="FILE", help="TOML file with any of the options")
        for each in options(self._struct):
            if each.is_common:
                _add(group.add_argument, each, has_variables=False)
        shared = {each.key for each in options(self._struct)} | {"config"}
        own = short.add_argument_group("options of this command")
        for action in parser._actions:
            if action.dest not in shared and not isinstance(action, (ShortHelp, argparse._HelpAction)):
                own._add_action(action)
        num = sum(each.has_flag for each in options(self._struct)) + 1
        short.epilog = (
            f"`{parser.prog} --help-all` lists all {num} options in groups; docs/reference/options.md also "
            "has the keys of the file, the environment variables and the rare options without a flag."
        )
        short.print_help()
        parser.exit()
