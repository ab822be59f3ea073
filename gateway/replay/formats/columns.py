"""CSV traces: a time and lengths; nothing is known of the prompts, and all differ."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence

from gateway.replay.formats.reading import RowProblem, TraceReading, job_of_lengths, jobs_of_rows
from gateway.replay.job import ReplayJob
from gateway.replay.line_reader import Lines

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
    found = {plain(name): i for i, name in reversed(list(enumerate(header_of(head))))}
    places = {kind: _place(found, names) for kind, names in _KINDS.items()}
    missing = [kind for kind in ("time", "prompt", "answer") if places[kind] is None]
    if missing:
        raise lines.bad(f"no column of {' or '.join(missing)}; see --formats")

    def jobs_of(line: bytes) -> Iterator[ReplayJob]:
        if line == head:
            return
        fields = _row(line, mark)
        values = {
            kind: fields[at] if at is not None and at < len(fields) else "" for kind, at in places.items()
        }
        num_tokens, num_output = _count(values["prompt"]), _count(values["answer"])
        yield job_of_lengths(lines, reading.ticks(values["time"]), num_tokens, num_output, values["model"])

    yield from jobs_of_rows(lines, rows, jobs_of)


_KINDS = {"time": TIME, "prompt": PROMPT, "answer": ANSWER, "model": MODELS}


def _place(found: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((found[name] for name in names if name in found), None)


def _delimiter(line: bytes) -> str:
    return chr(max(DELIMITERS, key=line.count))


def _fields(line: bytes, mark: str = "") -> list[str]:
    """Fields of a line. Raises ValueError."""
    try:
        return next(csv.reader([line.decode()], delimiter=mark or _delimiter(line), strict=True), [])
    except csv.Error as exc:
        raise ValueError(str(exc)) from exc


def _row(line: bytes, mark: str) -> list[str]:
    try:
        return _fields(line, mark)
    except ValueError as exc:
        raise RowProblem(str(exc)) from exc


def _count(text: str) -> int:
    try:
        value = float(text)
        if value != int(value):
            raise ValueError(f"{text!r} is no whole number")
    except (ValueError, OverflowError) as exc:
        raise RowProblem(f"no number of tokens: {exc}") from exc
    return int(value)
