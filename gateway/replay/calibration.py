"""Calibration: engines' speeds learnt from a recording, and the error of a replay.

Speeds are learnt by replaying: each request goes to the worker that it went to, and the profile is sought
with which first tokens and responses take as long as recorded, request by request. The search starts from
direct estimates (the quickest responses, the shortest prompts); engines are not linear, and each try is a
whole replay. The remaining differences (machines do other things too) are noise, and are added by chance.

With that profile, the recording is played again with its own policy, which now decides by itself: the
difference from the measured figures is the calibration error.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from gateway.core.errors import ConfigError
from gateway.observability.recording import Recorded
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.job import ReplayJob
from gateway.replay.placement_bounds import AsRecorded
from gateway.replay.profile import Profile
from gateway.replay.progress import Progress
from gateway.replay.results import percentile

MAX_LEARNT = 250
"""Requests by which speeds are learnt: a replay of them takes a fraction of a second, and there are many."""
SPREADS = (0.5, 0.2)
MAX_MOVES, GAIN = 60, 0.001
"""Moves of one search, and the difference at which the corners of a simplex count as equal."""
MIN_REQUESTS = 20
FIELDS = ("prefill_tokens_per_s", "base_s", "seq_s", "overhead_s")
LEAST = {"prefill_tokens_per_s": 1.0, "base_s": 1e-5, "seq_s": 1e-6, "overhead_s": 1e-4}

Values = dict[str, float]
Point = list[float]


@dataclass(frozen=True, slots=True)
class Error:
    """Figure as it was measured, and as it was replayed."""

    name: str
    measured: float
    replayed: float

    @property
    def text(self) -> str:
        if self.name == "hit rate":
            points = (self.replayed - self.measured) * 100
            off = f"{points:+.1f} points"
        else:
            off = f"{self.share:+.1%}" if math.isfinite(self.share) else "?"
        return f"{self.name} {self.measured:.4f} measured, {self.replayed:.4f} replayed ({off})"

    @property
    def share(self) -> float:
        return self.replayed / self.measured - 1 if self.measured else math.inf


def recorded_of(jobs: Sequence[ReplayJob]) -> list[Recorded]:
    return [job.recorded for job in jobs if job.recorded is not None]


def policy_of_recording(jobs: Sequence[ReplayJob]) -> str:
    """Policy that decided most of the requests."""
    return Counter(row.policy for row in recorded_of(jobs)).most_common(1)[0][0]


def learn(jobs: Sequence[ReplayJob], setup: Setup, progress: Progress | None = None) -> Profile:
    """Learn a profile; `setup` is the fleet, with all that cannot be learnt. Raises ConfigError for too few
    requests."""
    some = [job for job in jobs[:MAX_LEARNT] if job.recorded is not None]
    streamed = [row for row in recorded_of(some) if row.ttft_s is not None]
    if len(streamed) < MIN_REQUESTS:
        raise ConfigError(
            f"the recording has {len(streamed)} streamed answers, too few to learn speeds from "
            f"({MIN_REQUESTS}): give a --profile"
        )
    some = [replace(job, prompt=job.tokens()) for job in some]
    progress, num_tried = progress or Progress(), count(1)

    def loss(tried: Values) -> float:
        number = next(num_tried)
        progress.show(lambda: f"learning the engines' speeds, replay {number}")
        return _loss(some, _with(setup, tried))

    values = _search(_guess(streamed), loss)
    return replace(_profile(setup.profile, values), noise_s=_noise_s(some, _with(setup, values)))


def _noise_s(jobs: Sequence[ReplayJob], setup: Setup) -> tuple[float, ...]:
    """Distribution of the differences between recorded first tokens and those of the learnt profile, in
    seconds."""
    done = VirtualFleet(setup).run([again(job) for job in jobs])
    pairs = [(job.recorded.ttft_s, job.ttft_s) for job in done if job.recorded is not None]
    off = sorted(was - now for was, now in pairs if was is not None)
    return tuple(percentile(off, percent) for percent in range(1, 100, 2))


def _search(guess: Values, loss: Callable[[Values], float]) -> Values:
    """Best values that were tried; searched twice, since a simplex may shrink where it should not."""
    found = guess
    for spread in SPREADS:
        found = _simplex(found, spread, loss)
    return found


def _simplex(guess: Values, spread: float, loss: Callable[[Values], float]) -> Values:
    """Nelder-Mead search in the logarithms: the worst corner is moved through the middle of the others,
    farther where that is good and nearer where it is not; else all corners come nearer to the best."""

    def tried(point: Point) -> tuple[float, Point]:
        return loss(
            {name: max(math.exp(x), LEAST[name]) for name, x in zip(FIELDS, point, strict=True)}
        ), point

    start = [math.log(guess[name]) for name in FIELDS]
    corners = [tried(start)]
    for i in range(len(start)):
        corners.append(tried([x + spread * (i == j) for j, x in enumerate(start)]))
    for _ in range(MAX_MOVES):
        corners.sort(key=lambda corner: corner[0])
        worst = corners[-1]
        if worst[0] - corners[0][0] < GAIN:
            break
        middle = [sum(column) / len(start) for column in zip(*(p for _, p in corners[:-1]), strict=True)]
        moved = tried(_through(middle, worst[1], -1.0))
        if moved[0] < corners[0][0]:
            moved = min(moved, tried(_through(middle, worst[1], -2.0)))
        elif moved[0] >= corners[-2][0]:
            moved = min(moved, tried(_through(middle, worst[1], 0.5)))
        if moved[0] < worst[0]:
            corners[-1] = moved
        else:
            best = corners[0][1]
            corners[1:] = [tried(_through(best, point, 0.5)) for _, point in corners[1:]]
    best = min(corners)[1]
    return _values(best)


def _values(point: Point) -> Values:
    return {name: max(math.exp(x), LEAST[name]) for name, x in zip(FIELDS, point, strict=True)}


def _through(middle: Point, point: Point, far: float) -> Point:
    return [m + far * (x - m) for m, x in zip(middle, point, strict=True)]


def errors(measured: Sequence[ReplayJob], replayed: Sequence[ReplayJob]) -> list[Error]:
    """Errors of the same requests, in the same order; TTFT of those that were streamed."""
    pairs = [(job.recorded, done) for job, done in zip(measured, replayed, strict=True) if job.recorded]
    with_usage = [(row, done) for row, done in pairs if row.reported_cached_tokens is not None]
    found: list[Error] = []
    if with_usage:
        num_tokens = sum(done.num_tokens for _, done in with_usage)
        cached = sum(row.reported_cached_tokens or 0 for row, _ in with_usage)
        found.append(
            Error("hit rate", cached / num_tokens, sum(d.cached_tokens for _, d in with_usage) / num_tokens)
        )
    streamed = [(row.ttft_s, done.ttft_s) for row, done in pairs if row.ttft_s is not None]
    for percent in (50, 90) if streamed else ():
        was, now = (percentile(sorted(column), percent) for column in zip(*streamed, strict=True))
        found.append(Error(f"TTFT p{percent}", was, now))
    return found


def _guess(rows: Sequence[Recorded]) -> Values:
    tpot_s = sorted(
        (row.total_s - row.ttft_s) / (row.output_tokens - 1)
        for row in rows
        if row.ttft_s is not None and row.output_tokens and row.output_tokens > 1
    ) or [0.02]
    base_s = max(percentile(tpot_s, 10), 1e-4)
    speeds = [
        max(row.prompt_tokens - (row.reported_cached_tokens or 0), 1)
        / max((row.ttft_s or 0.0) - base_s, 1e-4)
        for row in rows
    ]
    overhead_s = max(min(row.ttft_s or 0.0 for row in rows) - base_s, 1e-3) / 2
    return {
        "prefill_tokens_per_s": statistics.median(speeds) * 1.5,
        "base_s": base_s,
        "seq_s": base_s * 0.02,
        "overhead_s": overhead_s,
    }


def _loss(jobs: Sequence[ReplayJob], setup: Setup) -> float:
    """Mean error of first and further tokens, in the logarithm; outliers count as one."""
    done = VirtualFleet(setup).run([again(job) for job in jobs])
    off: list[float] = []
    for job in done:
        row = job.recorded
        if row is None or row.ttft_s is None:
            continue
        off.append(abs(math.log(job.ttft_s / max(row.ttft_s, 1e-5))))
        if job.num_output > 1 and row.total_s > row.ttft_s:
            off.append(abs(math.log(job.tpot_s / ((row.total_s - row.ttft_s) / (job.num_output - 1)))))
    return sum(off) / len(off)


def again(job: ReplayJob) -> ReplayJob:
    """Copy of a request, not answered yet."""
    return replace(
        job,
        first_s=None,
        last_s=None,
        cached_tokens=0,
        decision=None,
        is_split=False,
        num_attempts=0,
        worker=None,
    )


def as_measured(job: ReplayJob) -> ReplayJob:
    """Copy of a request with the recorded times; a response that was not streamed came at its end."""
    row = job.recorded
    assert row is not None
    done = again(job)
    done.worker, done.cached_tokens = job.place, row.reported_cached_tokens or 0
    done.first_s = job.at + (row.total_s if row.ttft_s is None else row.ttft_s)
    done.last_s = job.at + row.total_s
    return done


def _with(setup: Setup, values: Values) -> Setup:
    return replace(setup, profile=_profile(setup.profile, values), profiles=(), policy=AsRecorded)


def _profile(base: Profile, values: Values) -> Profile:
    return replace(
        base,
        name="learnt",
        prefill_tokens_per_s=values["prefill_tokens_per_s"],
        step_s=values["base_s"] + values["seq_s"],
        seq_s=values["seq_s"],
        overhead_s=values["overhead_s"],
    )
