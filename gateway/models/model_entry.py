"""Model that workers serve: its tokenizer, its workers with their parity and day, and its status views."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.rendering import VLLM, Rendering
from gateway.core.worker import WorkerId
from gateway.models.loader import LoadState, TokenizerEntry
from gateway.parity.token_source import SourceChoice, TokenSource, WorkerParity
from gateway.parity.worker_day import ModelDay

REPAIR = 'repair it, or set renderer = "worker" in its table to use its workers\' /tokenize'


@dataclass(frozen=True, slots=True)
class WorkerTokenReport:
    """Token source of a worker as `kvgate check` reports it; `fault` is the reason why the check fails, if
    any."""

    note: str
    fault: str | None


@dataclass(slots=True, eq=False)
class ModelEntry:
    """Root model that workers of one rendering serve, with its tokenizer. `checked` and `choices` are keyed
    by worker URL; `workers` are those of the fleet. `gone` is set when the worker of a URL leaves. `other` is
    the other reading of its tokenizer, once a worker's tokens differed, with the workers `checked_by_other`
    (`tokenizer_readings.py`)."""

    root: str
    tokenizer: TokenizerEntry
    rendering: Rendering = VLLM
    workers: set[WorkerId] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    checked: dict[str, WorkerParity] = field(default_factory=dict)
    token_source: TokenSource = TokenSource.REMOTE
    choices: Mapping[str, SourceChoice] = field(default_factory=dict)
    gone: dict[str, asyncio.Event] = field(default_factory=dict)
    day: ModelDay = field(default_factory=ModelDay)
    other: TokenizerEntry | None = None
    checked_by_other: dict[str, WorkerParity] = field(default_factory=dict)


def report(entry: ModelEntry, url: str) -> WorkerTokenReport:
    """Token source of a worker, for `kvgate check`."""
    tokenizer, choice, checked = entry.tokenizer, entry.choices.get(url), entry.checked.get(url)
    way, why = (
        (choice.token_source.value, choice.why) if choice else (entry.token_source.value, "not compared")
    )
    as_engine = "" if entry.rendering == VLLM else f" rendered as {entry.rendering}"
    note = f"tokens of {entry.root}{as_engine}: {way}, {why}"
    if tokenizer.renderer is not None:
        note += f"; its tokenizer ({tokenizer.renderer.kind}) is from {tokenizer.where}"
    elif tokenizer.why and tokenizer.why not in note:
        note += f"; {tokenizer.why}"
    if tokenizer.state is LoadState.BROKEN:
        return WorkerTokenReport(note, f"the tokenizer of {entry.root} is broken: {tokenizer.why}; {REPAIR}")
    difference = checked.parity.difference if checked and tokenizer.source.is_given else None
    return WorkerTokenReport(note, difference)


def describe(entry: ModelEntry) -> dict[str, Any]:
    """Status view of a model and its workers."""
    workers = [
        {"worker": url, "source": choice.token_source.value, "reason": choice.why}
        for url, choice in entry.choices.items()
    ]
    return {
        "model": entry.root,
        "rendering": str(entry.rendering),
        "source": entry.token_source.value,
        **entry.tokenizer.describe(),
        "workers": workers,
    }
