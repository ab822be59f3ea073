"""Command lines that answer a misspelt flag or command with the nearest one there is."""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from gateway.core.spelling import meant

MAX_LISTED = 8
"""Commands that a refusal lists; where there are more, it names the help."""


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. Unknown flags are refused before what is missing, since they are the reason.

    Flags are never abbreviated: what an old name abbreviates may be another option today.
    """

    keeps_mistakes = False
    """True if unknown flags go to `mistakes` of the namespace, beside those of the configuration."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        if not self.keeps_mistakes:
            self._refuse(self._unknown_flags(given))
        known, unknown = super().parse_known_args(given, namespace)
        flags = [each for each in unknown if each.startswith("-")] or unknown[:1]
        mistakes = [self.mistake(each.partition("=")[0]) for each in flags]
        if self.keeps_mistakes:
            known.mistakes = mistakes
            return known, []
        self._refuse(mistakes)
        return known, unknown

    def mistake(self, flag: str) -> str:
        """Return a sentence about a flag, or another argument, that there is not."""
        near = meant(flag, self._option_string_actions, "--") or f"; see {self.prog} --help"
        return f"there is no {flag}{near}"

    def _unknown_flags(self, given: Sequence[str]) -> Iterator[str]:
        """Sentences about unknown flags: those before the command where this parser has commands."""
        own = itertools.takewhile(lambda each: each != "--", given)
        if self._subparsers is not None:
            own = itertools.takewhile(lambda each: each.startswith("-"), own)
        names = (each.partition("=")[0] for each in own if each.startswith("--"))
        return (self.mistake(name) for name in names if name not in self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(each) for each in action.choices]
        near = meant(str(value), names)
        if isinstance(action, argparse._SubParsersAction):
            listed = (
                f"there are {', '.join(names)}" if len(names) <= MAX_LISTED else f"see {self.prog} --help"
            )
            self._end(f"there is no command {value}{near or f'; {listed}'}")
        name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
        self._end(f"{name}: '{value}' is not one of {', '.join(names)}{near}")

    def _refuse(self, mistakes: Iterable[str]) -> None:
        if lines := [f"{self.prog}: {mistake}\n" for mistake in mistakes]:
            self.exit(2, "".join(lines))

    def _end(self, mistake: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {mistake}\n")
