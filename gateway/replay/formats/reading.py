"""Parts that all readers of traces share: options, rows that do not fit, and times."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import TypeVar

from gateway.core.errors import ConfigError
from gateway.replay.formats.times import ticks_of
from gateway.replay.job import MAX_TOKENS, MODEL, HashedPrompt, ReplayJob
from gateway.replay.line_reader import Lines

Row = TypeVar("Row")
Encode = Callable[[str], Sequence[int]]

UNKNOWN_BLOCK = 512
"""Tokens of a block of prompts with only a known length."""
UNKNOWN_OUTPUT = 128
"""Tokens of an answer of which a trace has neither text, nor length, nor limit."""
MAX_TICKS = 1e20
"""Latest tick of a clock: nanoseconds of the year 5000."""
PAUSE_S = 10.0
"""Seconds between two turns of a conversation without times."""


class RowProblem(Exception):
    """Row that cannot be played; it is skipped and counted."""


class EmptyPrompt(RowProblem):
    """Row with an empty prompt; it is counted apart."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of reading a trace. `speed`: so many times as fast as it was recorded. `encode` is needed for
    texts. `ticks_per_s` and `block_size` replace the detected unit of the clock and tokens of a hash; `rate`
    is that of requests without times, in requests per second. `limit`: the first requests only. A line that
    cannot be read is an error if `is_strict`, else it is skipped."""

    speed: float = 1.0
    seed: int = 1
    encode: Encode | None = None
    ticks_per_s: float | None = None
    limit: int | None = None
    rate: float | None = None
    block_size: int | None = None
    is_strict: bool = True

    @property
    def requests_per_s(self) -> float:
        return self.rate or 1.0


@dataclass(slots=True)
class TraceReading:
    """State of reading one trace. Jobs leave a reader with the ticks of the trace's clock in `at`, or with
    NaN where it has no times. `own_unit` is the format's; `hash_tokens` the block size, where it has one.
    `is_whole` until a time is written with a fraction."""

    options: TraceOptions
    own_unit: str | None = None
    hash_tokens: int | None = None
    has_texts: bool = False
    clock: str = ""
    is_whole: bool = True

    def ticks(self, value: float | str | None) -> float:
        """Ticks of a row's time; all rows have one of the same kind, or none. Raises RowProblem."""
        ticks, clock = nan, "none"
        if value is not None and value != "":
            try:
                ticks, is_iso = ticks_of(value)
            except (ValueError, OverflowError) as exc:
                raise RowProblem(f"no time: {exc}") from exc
            clock = "ISO" if is_iso else "number"
            self.is_whole = self.is_whole and "." not in str(value)
            if abs(ticks) > MAX_TICKS:
                raise RowProblem(f"timestamp of {ticks:g} is beyond {MAX_TICKS:g}")
        if clock != (self.clock or clock):
            kinds = {"none": "no time", "ISO": "an ISO time", "number": "a number as its time"}
            raise RowProblem(f"has {kinds[clock]}, where the first request has {kinds[self.clock]}")
        self.clock = clock
        return ticks

    def encode(self, text: str) -> "array[int]":
        """Tokens of a text. Raises ConfigError."""
        if self.options.encode is None:
            raise ConfigError("a trace with texts requires a tokenizer: --tokenizer")
        self.has_texts = True
        return array("I", self.options.encode(text)) if text else array("I")


def jobs_of_rows(
    lines: Lines, rows: Iterable[Row], jobs_of: Callable[[Row], Iterable[ReplayJob]]
) -> Iterator[ReplayJob]:
    """Turn each row into its requests; rows that do not fit are skipped."""
    for row in rows:
        try:
            jobs = list(jobs_of(row))
        except EmptyPrompt:
            lines.leave_out()
        except RowProblem as exc:
            lines.skip(str(exc))
        else:
            yield from jobs


def check_tokens(num_tokens: int, num_output: int) -> None:
    """Check the sizes of a request. Raises RowProblem."""
    if num_tokens == 0:
        raise EmptyPrompt("empty prompt")
    if not (0 < num_tokens <= MAX_TOKENS and 0 <= num_output <= MAX_TOKENS):
        raise RowProblem(f"tokens must be from 0 to {MAX_TOKENS:,}, not {num_tokens} and {num_output}")


def job_of_lengths(
    lines: Lines, at: float, num_tokens: int, num_output: int, model: str | None = None
) -> ReplayJob:
    """Make a request of which only lengths are known: its prompt differs from all others. Raises
    RowProblem."""
    check_tokens(num_tokens, num_output)
    num_blocks = -(-num_tokens // UNKNOWN_BLOCK)
    hashes = array("Q", [lines.number << 20 | i for i in range(num_blocks)])
    prompt = HashedPrompt(hashes, UNKNOWN_BLOCK, num_tokens)
    return ReplayJob(at, prompt, max(num_output, 1), model=model or MODEL)
