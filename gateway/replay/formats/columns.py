"""Traces of times and lengths, in CSV or in rows of JSON; nothing is known of the prompts, and all differ."""

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.replay.formats.reading import RowProblem, TraceReading, job_of_lengths, jobs_of_rows
from gateway.replay.job import ReplayJob
from gateway.replay.line_reader import MAX_LINE_BYTES, Lines

DELIMITERS = b",;\t"
TIME = ("timestamp", "starttime", "arrivedat", "time")
PROMPT = ("contexttokens", "requesttokens", "prompttokens", "inputlength", "numprefilltokens", "inputtokens")
ANSWER = (
    "generatedtokens",
    "responsetokens",
    "completiontokens",
    "outputlength",
    "numdecodetokens",
    "outputtokens",
)
MODELS = ("model",)
MAX_ROW_LINES = 1000
"""Most lines of one row, which has several where quoted fields have line breaks."""


def header_of(line: bytes) -> Sequence[str]:
    """Names in the header of a CSV file, as they are written; none where the line is no header."""
    try:
        names = _fields(line)
    except ValueError:
        return []
    return [name.strip() for name in names] if len(names) > 1 else []


def plain(name: str) -> str:
    """Name of a column without case, spaces and underscores."""
    return re.sub(r"[\s_]", "", name).lower()


def columns(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read rows by the names of the header."""
    rows = iter(lines)
    try:
        head = next(rows)
    except StopIteration:
        return
    mark = _delimiter(head)
    csv.field_size_limit(MAX_LINE_BYTES)
    found = {plain(name): i for i, name in reversed(list(enumerate(header_of(head))))}
    places = {kind: _place(found, names) for kind, names in _KINDS.items()}
    missing = [kind for kind in ("time", "prompt", "answer") if places[kind] is None]
    if missing:
        raise lines.bad(f"no column of {' or '.join(missing)}; see --formats")

    def jobs_of(fields: list[str] | RowProblem) -> Iterator[ReplayJob]:
        if isinstance(fields, RowProblem):
            raise fields
        if fields == _fields(head):
            return
        values = {
            kind: fields[at] if at is not None and at < len(fields) else "" for kind, at in places.items()
        }
        yield _job(lines, reading, values)

    yield from jobs_of_rows(lines, _records(lines, rows, mark), jobs_of)


def lengths(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read rows of JSON that have the same names."""

    def jobs_of(row: dict[str, Any]) -> Iterator[ReplayJob]:
        found = {plain(name): value for name, value in row.items() if value is not None}
        names = (
            (kind, next((name for name in names if name in found), "")) for kind, names in _KINDS.items()
        )
        yield _job(lines, reading, {kind: str(found.get(name, "")) for kind, name in names})

    yield from jobs_of_rows(lines, lines.decoded(dict[str, Any]), jobs_of)


def _job(lines: Lines, reading: TraceReading, values: Mapping[str, str]) -> ReplayJob:
    num_tokens, num_output = _count(values["prompt"]), _count(values["answer"])
    return job_of_lengths(lines, reading.ticks(values["time"]), num_tokens, num_output, values["model"])


_KINDS = {"time": TIME, "prompt": PROMPT, "answer": ANSWER, "model": MODELS}


def _place(found: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((found[name] for name in names if name in found), None)


def _delimiter(line: bytes) -> str:
    return chr(max(DELIMITERS, key=line.count))


def _fields(line: bytes) -> list[str]:
    """Fields of a header. Raises ValueError."""
    try:
        return next(_reader([line.decode()], _delimiter(line)), [])
    except csv.Error as exc:
        raise ValueError(str(exc)) from exc


def _reader(texts: Iterable[str], mark: str) -> Iterator[list[str]]:
    return csv.reader(texts, delimiter=mark, strict=True, skipinitialspace=True)


def _records(lines: Lines, rows: Iterator[bytes], mark: str) -> Iterator[list[str] | RowProblem]:
    """Fields of each row, which takes as many lines as its quotes need; where they never close, the row ends
    with its first line."""
    ahead = _Ahead(lines, rows)
    while True:
        try:
            fields = next(_reader(ahead.texts(), mark), None)
        except csv.Error as exc:
            ahead.give_back()
            yield RowProblem(str(exc))
            continue
        if fields is None:
            return
        ahead.name_first()
        yield fields


class _Ahead:
    """Lines that one row takes; those behind its first can be given back."""

    def __init__(self, lines: Lines, rows: Iterator[bytes]) -> None:
        self._lines, self._rows = lines, rows
        self._last = lines.number
        self._taken: list[tuple[int, bytes]] = []
        self._back: deque[tuple[int, bytes]] = deque()

    def texts(self) -> Iterator[str]:
        self._taken = []
        while len(self._taken) < MAX_ROW_LINES and (found := self._next()):
            self._taken.append(found)
            yield found[1].decode(errors="replace") + "\n"

    def _next(self) -> tuple[int, bytes] | None:
        if self._back:
            return self._back.popleft()
        self._lines.number = self._last
        line = next(self._rows, None)
        self._last = self._lines.number
        return None if line is None else (self._last, line)

    def give_back(self) -> None:
        self._back.extendleft(reversed(self._taken[1:]))
        self.name_first()

    def name_first(self) -> None:
        """Make the first line of the row the one that messages name."""
        self._lines.number = self._taken[0][0]


def _count(text: str) -> int:
    try:
        value = float(text)
        if value != int(value):
            raise ValueError(f"{text!r} is not a whole number")
    except (ValueError, OverflowError) as exc:
        raise RowProblem(f"no number of tokens: {exc}") from exc
    return int(value)
