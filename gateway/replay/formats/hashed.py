"""Prompts as chained hashes of blocks: the traces of Mooncake, Qwen (Bailian), Dynamo and aiperf."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from gateway.replay.formats.hash_shape import USUAL, HashShape, shape_of
from gateway.replay.formats.reading import RowProblem, TraceReading, check_tokens, job_of_lengths
from gateway.replay.job import MODEL, HashedPrompt, ReplayJob
from gateway.replay.line_reader import Lines

MAX_HASH = (1 << 64) - 1
OWN_HASH = 1 << 63
"""Bit of made-up hashes, of ends of prompts that a trace has no hash of."""


class HashedRow(msgspec.Struct):
    """Row of a trace with hashes. `chat_id` and `parent_chat_id` are Qwen's, `session_id` and `delay` (after
    the session's request before, in ticks) aiperf's."""

    input_length: int
    output_length: int = 0
    hash_ids: list[int] = []
    timestamp: int | float | str | None = None
    model: str | None = None
    session_id: str | int | None = None
    delay: float | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None


@dataclass(slots=True)
class _Numbered:
    number: int
    row: HashedRow
    at: float


def hashed(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read rows with hashes; their block size is detected. A second turn begins with all of an earlier
    prompt."""
    rows = list(islice(_rows(lines, reading), reading.options.limit))
    with_hashes = [each.row for each in rows if each.row.hash_ids]
    shape = HashShape(USUAL[0])
    if with_hashes:
        shapes = [(row.input_length, row.output_length, len(row.hash_ids)) for row in with_hashes]
        try:
            shape = shape_of(shapes, reading.options.block_size)
        except ValueError as exc:
            raise lines.bad(str(exc)) from exc
        reading.hash_tokens = shape.size
        is_qwen = not reading.is_whole and any(row.chat_id is not None for row in with_hashes)
        reading.own_unit = "s" if is_qwen else "ms" if shape.size == USUAL[0] else None
    yield from _jobs(lines, rows, shape)


def _jobs(lines: Lines, rows: list[_Numbered], shape: HashShape) -> Iterator[ReplayJob]:
    known: set[int] = set()
    sessions = _Sessions()
    for each in rows:
        row, lines.number = each.row, each.number
        session = sessions.of(row)
        try:
            if not row.hash_ids:
                job = job_of_lengths(lines, each.at, row.input_length, row.output_length, row.model)
            else:
                job = _job(each, shape, known)
        except RowProblem as exc:
            lines.skip(str(exc))
            continue
        job.session = session
        yield job


def _rows(lines: Lines, reading: TraceReading) -> Iterator[_Numbered]:
    """Decode rows, within their limits."""
    ends: dict[str | int, float] = {}
    for row in lines.decoded(HashedRow):
        if row.input_length == 0:
            lines.leave_out()
            continue
        try:
            check_tokens(row.input_length, row.output_length)
            if row.hash_ids and (min(row.hash_ids) < 0 or max(row.hash_ids) > MAX_HASH):
                raise RowProblem("hash_ids must be from 0 to 2^64 - 1")
            stamp = row.timestamp
            if stamp is None and row.delay is not None and row.session_id in ends:
                stamp = ends[row.session_id] + row.delay
            at = reading.ticks(stamp)
        except RowProblem as exc:
            lines.skip(str(exc))
            continue
        if stamp is not None and row.session_id is not None:
            ends[row.session_id] = at
        yield _Numbered(lines.number, row, at)


def _job(each: _Numbered, shape: HashShape, known: set[int]) -> ReplayJob:
    """Make a request; `known` has all hashes so far but those of first blocks. Raises RowProblem."""
    row, size = each.row, shape.size
    hashes, length = row.hash_ids, row.input_length
    if not shape.fits((length, row.output_length, len(hashes))):
        raise RowProblem(_misfit(row, size))
    num_blocks = -(-length // size)
    chain = hashes[:num_blocks]
    turn = 2 if len(hashes) > 2 and hashes[-2 if length % size else -1] in known else 1
    known.update(hashes[1:])
    if len(chain) < num_blocks:
        chain.append(OWN_HASH | each.number)
    prompt = HashedPrompt(array("Q", chain), size, length)
    return ReplayJob(each.at, prompt, max(row.output_length, 1), turn, model=row.model or MODEL)


def _misfit(row: HashedRow, size: int) -> str:
    verb = "do not hold" if len(row.hash_ids) * size < row.input_length else "are too many for"
    return f"{len(row.hash_ids)} hash_ids of {size} tokens {verb} {row.input_length}"


class _Sessions:
    """Conversations of chats that name the chat before: each by its first chat."""

    def __init__(self) -> None:
        self._firsts: dict[int | str, str] = {}

    def of(self, row: HashedRow) -> str | None:
        if row.session_id is not None:
            return str(row.session_id)
        if row.chat_id is None:
            return None
        before = row.parent_chat_id
        first = self._firsts.get(before, str(row.chat_id)) if before is not None else str(row.chat_id)
        self._firsts[row.chat_id] = first
        return first
