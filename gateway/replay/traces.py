"""Traces of real traffic, as jobs for a fleet in virtual time. `formats/table.py` has the formats; `read`
detects the one that a file has.

Files may be packed (.gz, .xz, .bz2). A row that cannot be read is skipped and counted, or an error, and so is
a request with an empty prompt. Where requests name models (`model`), each has cache entries of
its own; they get new names by their order.
"""

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import PAUSE_S, Encode, TraceOptions, TraceReading
from gateway.replay.formats.table import FORMATS, TraceFormat, check, check_options, detect
from gateway.replay.formats.times import UNITS, unit_of
from gateway.replay.job import MAX_CLOCK_S, MODEL, ReplayJob
from gateway.replay.line_reader import Lines

MOMENT_S = 3
"""Resolution of the clock of Mooncake's published traces, in seconds."""
MAX_SPAN_S = 1e9
"""Longest virtual time from the first request to the last: some thirty years, still with fractions of a
microsecond."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a trace, in order of arrival, the first at 0. `read_as` describes how the file was read;
    `num_empty` more requests had an empty prompt, and `num_skipped` rows could not be read; `empty` and
    `skipped` name the first of each."""

    jobs: list[ReplayJob]
    num_empty: int = 0
    read_as: str = ""
    num_skipped: int = 0
    skipped: Sequence[str] = ()
    empty: Sequence[str] = ()


def read(path: Path, options: TraceOptions, form: str = "auto") -> Requests:
    """Read a trace. Raises ConfigError."""
    lines = Lines(path, options.is_strict)
    known = _format(lines, form)
    reading = TraceReading(options, known.own_unit)
    jobs = list(islice(known.read(lines, reading), options.limit))
    if not jobs:
        raise ConfigError(f"{path}: has no requests{_why_none(lines)}")
    check_options(lines, reading)
    unit = _set_times(path, jobs, reading, known)
    begin = min(job.at for job in jobs)
    span_s = max(job.at for job in jobs) - begin
    if not span_s <= MAX_SPAN_S:
        raise ConfigError(f"{path}: spans {span_s:g} s at this speed, more than {MAX_SPAN_S:g} s")
    models: dict[str, str] = {}
    for job in jobs:
        job.at -= begin
        job.model = models.setdefault(job.model, f"{MODEL}{len(models) or ''}")
    jobs.sort(key=lambda job: job.at)
    read_as = _described(known, reading, unit)
    return Requests(
        jobs, lines.num_empty, read_as, lines.num_skipped, tuple(lines.skipped), tuple(lines.empty)
    )


def _format(lines: Lines, form: str) -> TraceFormat:
    if form == "auto":
        return detect(lines)
    check(lines, FORMATS[form])
    return FORMATS[form]


def is_recording(path: Path, form: str = "auto") -> bool:
    """True if a trace is a gateway's recording. Raises ConfigError."""
    return (form if form != "auto" else detect(Lines(path, is_strict=False)).name) == "recording"


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


def _set_times(path: Path, jobs: list[ReplayJob], reading: TraceReading, known: TraceFormat) -> str:
    """Turn ticks into seconds at the chosen speed. Returns the unit's name. Raises ConfigError."""
    options, unit = reading.options, "s"
    if reading.clock == "none":
        for number, job in enumerate(jobs):
            job.at = number / options.requests_per_s
    elif reading.clock == "number":
        unit = _unit(jobs, reading)
        for job in jobs:
            job.at /= UNITS[unit]
    if reading.clock != "none" and known.is_conversation:
        for job in jobs:
            job.at += PAUSE_S * (job.turn - 1)
    if reading.hash_tokens:
        rng = random.Random(options.seed)
        for job, at in zip(jobs, _arrivals([job.at for job in jobs], rng), strict=True):
            job.at = at
    latest = max(abs(job.at) for job in jobs)
    if latest > MAX_CLOCK_S:
        raise ConfigError(
            f"{path}: a timestamp of {latest:g} s is beyond {MAX_CLOCK_S:g} s; see --trace-unit"
        )
    for job in jobs:
        job.at /= options.speed
    return unit


def _unit(jobs: Sequence[ReplayJob], reading: TraceReading) -> str:
    forced = reading.options.ticks_per_s
    if forced:
        return next(name for name, per_s in UNITS.items() if per_s == forced)
    return unit_of([job.at for job in jobs], reading.own_unit, is_whole=reading.is_whole)


def _arrivals(seconds: Sequence[float], rng: random.Random) -> list[float]:
    """Seconds of arrival. Where the clock shows its resolution (all times are multiples of it, to the last
    millisecond, which is truncated, and requests share moments), those of one moment are spread over it at
    random, in the order of the file: a turn stays behind the one before."""
    moments = [round(at / MOMENT_S) for at in seconds]
    pairs = zip(seconds, moments, strict=True)
    nums = Counter(moments)
    if not 1 < len(nums) < len(moments) or any(abs(at - moment * MOMENT_S) > 0.0015 for at, moment in pairs):
        return list(seconds)
    offsets = {moment: iter(sorted(rng.random() for _ in range(num))) for moment, num in nums.items()}
    return [(moment + next(offsets[moment])) * MOMENT_S for moment in moments]


def _why_none(lines: Lines) -> str:
    whys = [f"prompts of {lines.num_empty} are empty"] if lines.num_empty else []
    if lines.num_skipped:
        whys.append(f"{lines.num_skipped} cannot be read: {'; '.join(lines.skipped)}")
    return f" ({', '.join(whys)})" if whys else ""


def _described(known: TraceFormat, reading: TraceReading, unit: str) -> str:
    """Words for how a file was read."""
    parts = [known.name]
    if reading.hash_tokens:
        parts.append(f"hashes of {reading.hash_tokens} tokens")
    elif reading.has_texts:
        parts.append("texts")
    rate = f"no times (played at {reading.options.requests_per_s:g}/s)"
    clocks = {"none": rate, "ISO": "ISO times", "number": f"times in {unit}", "recorded": "recorded times"}
    return ", ".join([*parts, clocks[reading.clock]])
