"""Figures of the tests with real engines: a table at the end of the tests' report (`-q` too).

`docs/benchmarks/engines.md` publishes them. A test adds its figure before it asserts, so that a figure that
is too low is in the table of the run that failed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

PREDICTED = "predicted = reported cached tokens"
PROMPTS = "bodies with the engine's own prompt"
SALTS = "hits of another tenant's prompt"
ADAPTERS = "answers by another model"
STAYED = "later turns at their prefix"
EXPLAINED = "later turns as predicted, to the answer before"
QUESTIONS = (PREDICTED, PROMPTS, SALTS, ADAPTERS, STAYED, EXPLAINED)


@dataclass(frozen=True, slots=True)
class Figure:
    """`num` of `num_all` requests of one test."""

    question: str
    engine: str
    num: int
    num_all: int


@dataclass(slots=True)
class EngineFigures:
    """The figures of a run of the tests."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, question: str, engine: str, num: int, num_all: int) -> None:
        assert question in QUESTIONS and 0 <= num <= num_all and num_all, (question, num, num_all)
        self.figures.append(Figure(question, engine, num, num_all))

    def add_equal(
        self, engine: str, pairs: Iterable[tuple[object, object]], question: str = PREDICTED
    ) -> None:
        """Add how many pairs are equal."""
        equal = [one == other for one, other in pairs]
        self.add(question, engine, sum(equal), len(equal))

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Question, engine and figure, tests of one engine added up, in the order of the questions."""
        names = {(each.question, each.engine): None for each in self.figures}
        for question, engine in sorted(names, key=lambda name: QUESTIONS.index(name[0])):
            of_these = [each for each in self.figures if (each.question, each.engine) == (question, engine)]
            num, num_all = (sum(getattr(each, name) for each in of_these) for name in ("num", "num_all"))
            yield question, engine, f"{num:,} of {num_all:,}"


KEY = pytest.StashKey[EngineFigures]()


def figures_of(config: pytest.Config) -> EngineFigures:
    return config.stash.setdefault(KEY, EngineFigures())


def report(terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of a run that has figures."""
    rows = list(figures_of(config).rows())
    if not rows:
        return
    terminal.section("engines' figures")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        terminal.write_line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
