"""Traces of real traffic, as jobs for a fleet in virtual time. `FORMATS` names them; `read` detects the
format.

    mooncake    JSON lines; prompts are known as chained hashes of 512 tokens
    azure       CSV of time, prompt and output tokens: nothing is known of the prompts, and all differ
    turns       JSON lines with texts: session, input (the whole prompt), output, and time
    recording   JSON lines that a gateway wrote (`--record`)

Files may be packed (.gz, .xz). A bad line is rejected with its number; a request with an empty prompt is
left out and counted. Where requests name models (`model`), each has cache entries of its own; they get new
names by their order.
"""

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.replay.job import MAX_CLOCK_S, MAX_TOKENS, MODEL, HashedPrompt, ReplayJob
from gateway.replay.line_reader import Lines
from gateway.replay.recording import recording

HASHED_TOKENS = 512
MAX_HASH = (1 << 64) - 1
MOMENT_MS = 3000
"""Resolution of the clock of Mooncake's published traces."""
MAX_SPAN_S = 1e9
"""Longest virtual time from the first request to the last: some thirty years, still with fractions of a
microsecond."""
AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of reading a trace. `speed`: so many times as fast as it was recorded. `encode` is needed for
    texts; `ticks_per_s` is the unit of their clock, where that cannot be seen because it does not begin in
    1970. `limit`: the first requests only."""

    speed: float = 1.0
    seed: int = 1
    encode: Encode | None = None
    ticks_per_s: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a trace, in order of arrival, the first at 0; `num_empty` more had an empty prompt."""

    jobs: list[ReplayJob]
    num_empty: int = 0


class _Asked(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    model: str = MODEL


class _Turn(msgspec.Struct):
    input: str
    output: str = ""
    session_id: str | None = None
    session: str | None = None
    timestamp: float | None = None
    model: str = MODEL


def read(path: Path, reading: TraceOptions, form: str = "auto") -> Requests:
    """Read a trace. Raises ConfigError."""
    lines = Lines(path)
    reader = FORMATS[form if form != "auto" else _detect(lines)]
    jobs = list(islice(reader(lines, reading), reading.limit))
    if not jobs:
        empty = f" (prompts of {lines.num_empty} are empty)" if lines.num_empty else ""
        raise ConfigError(f"{path}: has no requests{empty}")
    begin = min(job.at for job in jobs)
    span_s = max(job.at for job in jobs) - begin
    if not span_s <= MAX_SPAN_S:
        raise ConfigError(f"{path}: spans {span_s:g} s at this speed, more than {MAX_SPAN_S:g} s")
    models: dict[str, str] = {}
    for job in jobs:
        job.at -= begin
        job.model = models.setdefault(job.model, f"{MODEL}{len(models) or ''}")
    return Requests(sorted(jobs, key=lambda job: job.at), lines.num_empty)


def is_recording(path: Path, form: str = "auto") -> bool:
    """True if a trace is a gateway's recording. Raises ConfigError."""
    return (form if form != "auto" else _detect(Lines(path))) == "recording"


def mooncake(path: Path, *, speed: float = 1.0, limit: int | None = None, seed: int = 1) -> list[ReplayJob]:
    return read(path, TraceOptions(speed, seed, limit=limit), "mooncake").jobs


def agent(
    path: Path, encode: Encode, *, copies: int = 1, speed: float = 1.0, seed: int = 1
) -> list[ReplayJob]:
    """Sessions of an agent trace, `copies` of each with prompts that differ from their first token on; they
    begin at random within the trace."""
    rng, jobs = random.Random(seed), read(path, TraceOptions(speed, seed, encode, 1e6), "turns").jobs
    begins: dict[str | None, float] = {}
    for job in jobs:
        begins.setdefault(job.session, job.at)
    end = jobs[-1].at
    found: list[ReplayJob] = []
    for copy in range(copies):
        late = {session: rng.random() * end if copy else begin for session, begin in begins.items()}
        for job in jobs:
            at = job.at - begins[job.session] + late[job.session]
            tokens = array("I", [copy]) + job.tokens()
            found.append(replace(job, at=at, prompt=tokens, session=f"{job.session}/{copy}"))
    return sorted(found, key=lambda job: job.at)


def _mooncake(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read Mooncake's format. A second turn begins with all of an earlier prompt."""
    rows = list(islice(_hashed(lines), reading.limit))
    arrivals = _arrivals([asked.timestamp for asked in rows], random.Random(reading.seed))
    known: set[int] = set()
    for asked, at in zip(rows, arrivals, strict=True):
        hashes, length = asked.hash_ids, asked.input_length
        turn = 2 if len(hashes) > 2 and hashes[-2 if length % HASHED_TOKENS else -1] in known else 1
        known.update(hashes[1:])
        prompt = HashedPrompt(array("Q", hashes), HASHED_TOKENS, length)
        yield ReplayJob(at / reading.speed, prompt, max(asked.output_length, 1), turn, model=asked.model)


def _hashed(lines: Lines) -> Iterator[_Asked]:
    """Decode Mooncake's lines, within their limits."""
    for asked in lines.decoded(_Asked):
        hashes, length = asked.hash_ids, asked.input_length
        if length == 0:
            lines.num_empty += 1
            continue
        if not 0 < length <= len(hashes) * HASHED_TOKENS:
            raise lines.bad(f"{len(hashes)} hash_ids of {HASHED_TOKENS} tokens do not hold {length}")
        if min(hashes) < 0 or max(hashes) > MAX_HASH:
            raise lines.bad("hash_ids must be from 0 to 2^64 - 1")
        _check_tokens(lines, length, asked.output_length)
        _check_clock(lines, asked.timestamp / 1000)
        yield asked


def _arrivals(timestamps_ms: Sequence[float], rng: random.Random) -> list[float]:
    """Seconds of arrival. Where the clock shows its resolution (all times are multiples of it, to the last
    millisecond, which is truncated, and requests share moments), those of one moment are spread over it at
    random, in the order of the file: a turn stays behind the one before."""
    moments = [round(at / MOMENT_MS) for at in timestamps_ms]
    pairs = zip(timestamps_ms, moments, strict=True)
    nums = Counter(moments)
    if not 1 < len(nums) < len(moments) or any(abs(at - moment * MOMENT_MS) > 1 for at, moment in pairs):
        return [at / 1000 for at in timestamps_ms]
    offsets = {moment: iter(sorted(rng.random() for _ in range(num))) for moment, num in nums.items()}
    return [(moment + next(offsets[moment])) * MOMENT_MS / 1000 for moment in moments]


def _check_tokens(lines: Lines, num_tokens: int, num_output: int) -> None:
    if not (0 < num_tokens <= MAX_TOKENS and 0 <= num_output <= MAX_TOKENS):
        raise lines.bad(f"tokens must be from 0 to {MAX_TOKENS:,}, not {num_tokens} and {num_output}")


def _check_clock(lines: Lines, seconds: float) -> None:
    if not abs(seconds) <= MAX_CLOCK_S:
        raise lines.bad(f"timestamp of {seconds:g} s is beyond {MAX_CLOCK_S:g} s")


def _azure(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read Azure's format: times with seven digits (2023), or six and a zone (2024)."""
    for line in lines:
        if line.startswith(AZURE_HEAD):
            continue
        try:
            when, context, generated = line.decode().split(",")
            at = datetime.fromisoformat(when).timestamp()
            num_tokens, num_output = int(context), int(generated)
        except (ValueError, OverflowError) as exc:
            raise lines.bad(f"no {AZURE_HEAD.decode()}: {exc}") from exc
        if num_tokens == 0:
            lines.num_empty += 1
            continue
        _check_tokens(lines, num_tokens, num_output)
        num_blocks = -(-num_tokens // HASHED_TOKENS)
        hashes = array("Q", [lines.number << 20 | i for i in range(num_blocks)])
        prompt = HashedPrompt(hashes, HASHED_TOKENS, num_tokens)
        yield ReplayJob(at / reading.speed, prompt, max(num_output, 1))


def _turns(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read texts. A recorded response is repeated, so that the next turn finds it. Without times, one a
    second."""
    if reading.encode is None:
        raise ConfigError(f"{lines.path}: has texts, which need a tokenizer")
    num_turns: dict[str | None, int] = {}
    at: float
    for number, asked in enumerate(lines.decoded(_Turn)):
        prompt, answer = (array("I", reading.encode(text)) for text in (asked.input, asked.output))
        if not prompt:
            lines.num_empty += 1
            continue
        _check_tokens(lines, len(prompt), len(answer))
        session = asked.session_id if asked.session is None else asked.session
        turn = num_turns[session] = num_turns.get(session, 0) + 1 if session else 1
        at = number if asked.timestamp is None else _seconds(asked.timestamp, reading.ticks_per_s)
        _check_clock(lines, at)
        num_output, output, begin = len(answer) or 1, answer or [0], at / reading.speed
        yield ReplayJob(begin, prompt, num_output, turn, output, session, asked.model)


def _seconds(timestamp: float, ticks_per_s: float | None) -> float:
    """Seconds of a clock that counts seconds, or thousandths or millionths of them since 1970."""
    if ticks_per_s is None:
        ticks_per_s = 1e6 if timestamp > 1e14 else 1e3 if timestamp > 1e11 else 1.0
    return timestamp / ticks_per_s


def _recording(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    yield from recording(lines, reading.speed)


FORMATS: Mapping[str, Callable[[Lines, TraceOptions], Iterator[ReplayJob]]] = {
    "mooncake": _mooncake,
    "azure": _azure,
    "turns": _turns,
    "recording": _recording,
}
_MARKS = {"mooncake": "hash_ids", "turns": "input", "recording": "worker"}


def _detect(lines: Lines) -> str:
    first = lines.first()
    if first.startswith(AZURE_HEAD):
        return "azure"
    try:
        row = msgspec.json.decode(first)
    except UNREADABLE as exc:
        raise lines.bad(f"neither JSON nor {AZURE_HEAD.decode()}: {exc}") from exc
    for form, field in _MARKS.items():
        if isinstance(row, dict) and field in row:
            return form
    marks = ", ".join(f"{field} ({form})" for form, field in _MARKS.items())
    raise lines.bad(f"unknown format: no field {marks}; see --format")
