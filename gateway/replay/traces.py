"""Traces of real traffic, as jobs for a fleet in virtual time. `FORMATS` names them; `read` detects the
format.

    mooncake    JSON lines; prompts are known as chained hashes of 512 tokens
    azure       CSV of time, prompt and output tokens: nothing is known of the prompts, and all differ
    turns       JSON lines with texts: session, input (the whole prompt), output, and time
    recording   JSON lines that a gateway wrote (`--record`)

Files may be packed (.gz, .xz). A bad line is rejected with its number.
"""

import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from gateway.core.decoding import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.replay.job import HashedPrompt, ReplayJob
from gateway.replay.line_reader import Lines
from gateway.replay.recording import recording

HASHED_TOKENS = 512
MOMENT_S = 3.0
"""Resolution in seconds of Mooncake's clock: requests of one recorded moment are spread over it."""
AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of reading a trace. `speed`: so many times as fast as it was recorded. `encode` is needed for
    texts; `ticks_per_s` is the unit of their clock, where that cannot be seen because it does not begin in
    1970."""

    speed: float = 1.0
    seed: int = 1
    encode: Encode | None = None
    ticks_per_s: float | None = None


class _Asked(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Turn(msgspec.Struct):
    input: str
    output: str = ""
    session_id: str | None = None
    session: str | None = None
    timestamp: float | None = None


def read(path: Path, reading: TraceOptions, form: str = "auto", limit: int | None = None) -> list[ReplayJob]:
    """Read a trace, in order of arrival, the first request at 0. Raises ConfigError."""
    lines = Lines(path)
    jobs: list[ReplayJob] = []
    for job in FORMATS[form if form != "auto" else _detect(lines)](lines, reading):
        if len(jobs) == limit:
            break
        jobs.append(job)
    if not jobs:
        raise ConfigError(f"{path}: has no requests")
    begin = min(job.at for job in jobs)
    for job in jobs:
        job.at -= begin
    return sorted(jobs, key=lambda job: job.at)


def is_recording(path: Path, form: str = "auto") -> bool:
    """True if a trace is a gateway's recording. Raises ConfigError."""
    return (form if form != "auto" else _detect(Lines(path))) == "recording"


def mooncake(path: Path, *, speed: float = 1.0, limit: int | None = None, seed: int = 1) -> list[ReplayJob]:
    return read(path, TraceOptions(speed, seed), "mooncake", limit)


def agent(
    path: Path, encode: Encode, *, copies: int = 1, speed: float = 1.0, seed: int = 1
) -> list[ReplayJob]:
    """Sessions of an agent trace, `copies` of each with prompts that differ from their first token on; they
    begin at random within the trace."""
    rng, jobs = random.Random(seed), read(path, TraceOptions(speed, seed, encode, 1e6), "turns")
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
            found.append(ReplayJob(at, tokens, job.num_output, job.turn, job.output, f"{job.session}/{copy}"))
    return sorted(found, key=lambda job: job.at)


def _mooncake(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read Mooncake's format. A second turn begins with all of an earlier prompt."""
    rng = random.Random(reading.seed)
    known: set[int] = set()
    for asked in lines.decoded(_Asked):
        hashes, length = asked.hash_ids, asked.input_length
        if not 0 < length <= len(hashes) * HASHED_TOKENS or min(hashes) < 0:
            raise lines.bad(f"{len(hashes)} hash_ids of {HASHED_TOKENS} tokens do not hold {length}")
        at = (asked.timestamp / 1000 + rng.random() * MOMENT_S) / reading.speed
        turn = 2 if len(hashes) > 2 and hashes[-2 if length % HASHED_TOKENS else -1] in known else 1
        known.update(hashes[1:])
        prompt = HashedPrompt(array("Q", hashes), HASHED_TOKENS, length)
        yield ReplayJob(at, prompt, max(asked.output_length, 1), turn)


def _azure(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read Azure's format: times with seven digits (2023), or six and a zone (2024)."""
    for line in lines:
        if line.startswith(AZURE_HEAD):
            continue
        try:
            when, context, generated = line.decode().split(",")
            at = datetime.fromisoformat(when).timestamp()
            num_tokens, num_output = int(context), int(generated)
        except ValueError as exc:
            raise lines.bad(f"no {AZURE_HEAD.decode()}: {exc}") from exc
        num_blocks = -(-max(num_tokens, 1) // HASHED_TOKENS)
        hashes = array("Q", [lines.number << 20 | i for i in range(num_blocks)])
        prompt = HashedPrompt(hashes, HASHED_TOKENS, max(num_tokens, 1))
        yield ReplayJob(at / reading.speed, prompt, max(num_output, 1))


def _turns(lines: Lines, reading: TraceOptions) -> Iterator[ReplayJob]:
    """Read texts. A recorded response is repeated, so that the next turn finds it. Without times, one a
    second."""
    if reading.encode is None:
        raise ConfigError(f"{lines.path}: has texts, which need a tokenizer")
    num_turns: dict[str | None, int] = {}
    for number, asked in enumerate(lines.decoded(_Turn)):
        prompt, answer = (array("I", reading.encode(text)) for text in (asked.input, asked.output))
        if not prompt:
            raise lines.bad("input is empty")
        session = asked.session_id if asked.session is None else asked.session
        turn = num_turns[session] = num_turns.get(session, 0) + 1 if session else 1
        at = number if asked.timestamp is None else _seconds(asked.timestamp, reading.ticks_per_s)
        yield ReplayJob(at / reading.speed, prompt, len(answer) or 1, turn, answer or [0], session)


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
