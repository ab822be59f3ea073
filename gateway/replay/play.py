"""Run of a trace with a fleet and a policy, all by names, so that it can be sent to another process."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.core.errors import ConfigError
from gateway.core.worker import WorkerId
from gateway.observability.recording import Recorded
from gateway.policies.base import Policy
from gateway.policies.framework.plugins import read_file
from gateway.policies.framework.registry import PolicyRegistry
from gateway.replay.calibration import (
    Error,
    again,
    as_measured,
    errors,
    learn,
    policy_of_recording,
    recorded_of,
)
from gateway.replay.context_limit import admitted
from gateway.replay.fleet import Setup, VirtualFleet, pooled_of
from gateway.replay.formats.reading import Encode, TraceOptions
from gateway.replay.formats.times import UNITS
from gateway.replay.job import HashedPrompt, ReplayJob, worker_of
from gateway.replay.placement_bounds import AllKnowing
from gateway.replay.profile import Profile
from gateway.replay.progress import Progress, RunCounts
from gateway.replay.results import Curves, Slo, Summary, curves, summarize
from gateway.replay.traces import Requests, is_recording, read
from gateway.tokenization.tokenizer import Tokenizer

POOLED = "pooled"
BOUNDS = (POOLED, AllKnowing.name)
"""Rows that no gateway can reach (`placement_bounds.py`)."""
STAND_IN = "least_load"
"""Policy where none decides: with one worker, or where requests go where they went."""
TEXT_BLOCK_SIZE = 16
"""Block size where a trace has none: vLLM's default."""
TOKENIZER = "tokenizer.json"
POLL_S = 0.1
SHOWN_REQUESTS = 64
"""Requests between two looks at the clock for the progress."""
MAX_BLOCKS = 1 << 26
"""Blocks of a simulated cache: each takes memory once it is used."""
GC_OBJECTS = 200_000
"""Objects between garbage collections: a run makes millions of small values and few cycles, and collecting
took a fifth of its time."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace by its name. `tokenizer` is a directory, empty for the bundled one. `rate` (requests per second),
    `unit` (of the clock) and `hash_tokens` (of a block) are None where the trace shows them."""

    path: Path
    form: str = "auto"
    speed: float = 1.0
    seed: int = 1
    limit: int | None = None
    tokenizer: str = ""
    rate: float | None = None
    unit: str | None = None
    hash_tokens: int | None = None
    is_strict: bool = False

    def read(self) -> Requests:
        """Read the requests. Raises ConfigError."""
        if self.tokenizer and not (Path(self.tokenizer) / TOKENIZER).is_file():
            raise ConfigError(f"--tokenizer {self.tokenizer}: no {TOKENIZER} there")
        encode: Encode = _Encoder(Path(self.tokenizer or bundled_tokenizer()))
        options = TraceOptions(
            self.speed,
            self.seed,
            encode,
            UNITS[self.unit] if self.unit else None,
            self.limit,
            self.rate,
            self.hash_tokens,
            self.is_strict,
        )
        return read(self.path, options, self.form)

    def jobs(self) -> list[ReplayJob]:
        """Read the requests alone. Raises ConfigError."""
        return self.read().jobs


class _Encoder:
    """Tokenizer that is loaded with the first text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer: Tokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(self._path / TOKENIZER)
        return list(self._tokenizer.encode(text, False))


@contextmanager
def few_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(GC_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Run by names. `kv_blocks` 0: as many as the profile's tokens fill; `block_size` 0: the trace's."""

    trace: Trace
    policy: str
    profile: Profile
    num_workers: int
    block_size: int = 0
    kv_blocks: int = 0
    event_delay_s: float = 0.005
    slo: Slo = Slo()
    policy_file: str = ""


@dataclass(frozen=True, slots=True)
class ExcludedRequests:
    """Requests of a trace that were not played as recorded: `num_empty` had no prompt, `num_rejected` left no
    room for an answer within `context_tokens`, and `num_truncated` answers ended there."""

    context_tokens: int = 0
    num_empty: int = 0
    num_rejected: int = 0
    num_truncated: int = 0


@dataclass(frozen=True, slots=True)
class TraceAccount:
    """Account of how a trace was read: its format, block size and clock, the number of rows that could not be
    read, the first of these, and the first with an empty prompt."""

    read_as: str = ""
    num_skipped: int = 0
    skipped: Sequence[str] = ()
    empty: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    summary: Summary
    curves: Curves
    jobs: tuple[ReplayJob, ...] = ()
    excluded: ExcludedRequests = ExcludedRequests()
    block_size: int = 0
    origin: TraceAccount = TraceAccount()


def play(
    run: ReplayRun, *, keeps_jobs: bool = False, watch: Callable[[int, int], None] | None = None
) -> RunResult:
    """Play one run; `watch` gets the number of ended requests, and of all. Raises ConfigError."""
    requests = run.trace.read()
    setup = setup_of(run, requests.jobs)
    fleet = VirtualFleet(setup)
    with few_collections():
        done = fleet.run(requests.jobs, watch)
    if not done:
        raise ConfigError(f"{run.trace.path}: no prompt fits the {setup.context_tokens:,} tokens of a cache")
    excluded = ExcludedRequests(
        setup.context_tokens, requests.num_empty, fleet.num_rejected, fleet.num_truncated
    )
    summary = summarize(run.policy, done, setup.num_workers, run.slo)
    kept = tuple(done) if keeps_jobs else ()
    origin = TraceAccount(requests.read_as, requests.num_skipped, requests.skipped, requests.empty)
    return RunResult(summary, curves(done), kept, excluded, setup.block_size, origin)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Calibration of a recording: its engines' profile, and the error of a replay. `measured` is its own
    row."""

    profile: Profile
    num_workers: int
    measured: RunResult
    policy: str
    errors: Sequence[Error] = ()


def calibrate(run: ReplayRun, base: Profile | None, progress: Progress | None = None) -> Calibrated | None:
    """Calibrate with a recording; None for other traces. Speeds are learnt unless a `base` is given; `run`
    has the limits and, where they are given, the sizes. Raises ConfigError."""
    if not is_recording(run.trace.path, run.trace.form):
        return None
    jobs = replace(run.trace, speed=1.0).jobs()
    rows = recorded_of(jobs)
    num_workers = len({row.worker for row in rows})
    policy = policy_of_recording(jobs)
    sized = base or replace(run.profile, kv_tokens=_kv_tokens(rows, run.profile))
    run = replace(run, profile=sized, num_workers=num_workers, policy=policy, kv_blocks=0, block_size=0)
    is_known = policy in library_of(run.policy_file).names("policy")
    setup = setup_of(run if is_known else replace(run, policy=STAND_IN), jobs)
    jobs = admitted(jobs, setup.context_tokens).jobs
    if not jobs:
        raise ConfigError(f"{run.trace.path}: no prompt fits the {setup.context_tokens:,} tokens of a cache")
    with few_collections():
        profile = base or learn(jobs, setup, progress)
    measured = [as_measured(job) for job in jobs]
    shown = RunResult(summarize("measured", measured, num_workers, run.slo), curves(measured))
    if not is_known:
        return Calibrated(profile, num_workers, shown, policy)
    kept = replace(profile, kv_tokens=setup.profile.kv_tokens)
    replayed = VirtualFleet(replace(setup, profile=kept)).run([again(job) for job in jobs])
    return Calibrated(profile, num_workers, shown, policy, errors(jobs, replayed))


def _kv_tokens(rows: Sequence[Recorded], profile: Profile) -> int:
    """Cache size that most of the recorded workers reported."""
    sizes = Counter(row.cache_blocks * row.block_size for row in rows if row.cache_blocks and row.block_size)
    return sizes.most_common(1)[0][0] if sizes else profile.kv_tokens


def setup_of(run: ReplayRun, jobs: list[ReplayJob]) -> Setup:
    size = run.block_size or block_size_of(jobs)
    profile = replace(run.profile, kv_tokens=run.kv_blocks * size) if run.kv_blocks else run.profile
    if profile.kv_tokens // size > MAX_BLOCKS:
        raise ConfigError(f"a cache of {profile.kv_tokens // size:,} blocks exceeds {MAX_BLOCKS:,}")
    setup = Setup(
        run.num_workers,
        profile,
        block_size=size,
        event_delay_s=run.event_delay_s,
        seed=run.trace.seed,
        policy=maker_of(run.policy, run.policy_file),
        served=served_of(jobs, run.num_workers),
    )
    return pooled_of(setup) if run.policy == POOLED else setup


def served_of(jobs: Sequence[ReplayJob], num_workers: int) -> list[list[str]]:
    """Models of each worker: those of the recorded ones, dealt in turn where their numbers differ; without a
    recording all."""
    by_place: dict[WorkerId | None, set[str]] = {}
    for job in jobs:
        by_place.setdefault(job.place, set()).add(job.model)
    places = [None] if None in by_place else [worker_of(number) for number in range(len(by_place))]
    served: list[set[str]] = [set() for _ in range(num_workers)]
    for number in range(max(num_workers, len(places))):
        served[number % num_workers] |= by_place[places[number % len(places)]]
    return [sorted(models) for models in served]


def block_size_of(jobs: list[ReplayJob]) -> int:
    """Block size of the recorded workers, else the trace's."""
    recorded = Counter(job.recorded.block_size for job in jobs if job.recorded and job.recorded.block_size)
    hashed = Counter(job.prompt.block_size for job in jobs if isinstance(job.prompt, HashedPrompt))
    sizes = (recorded or hashed).most_common(1)
    return sizes[0][0] if sizes else TEXT_BLOCK_SIZE


def maker_of(policy: str, path: str = "") -> Callable[[], Policy]:
    """Factory of a policy by name. Raises ConfigError."""
    if policy == AllKnowing.name:
        return AllKnowing
    return partial(library_of(path).bare, STAND_IN if policy == POOLED else policy)


def library_of(path: str = "") -> PolicyRegistry:
    """Policies that are shipped, installed, or in a policy file. Raises ConfigError."""
    return PolicyRegistry(file=read_file(Path(path)) if path else None)


def play_all(runs: list[ReplayRun], num_processes: int, progress: Progress | None = None) -> list[RunResult]:
    """Play all runs in several processes. Returns the results in order. Raises ConfigError."""
    progress, counts = progress or Progress(), RunCounts(len(runs))
    if num_processes <= 1 or len(runs) == 1:
        return [play(run, watch=partial(_watched, progress, counts, i)) for i, run in enumerate(runs)]
    num = min(num_processes, len(runs))
    with ProcessPoolExecutor(num, get_context("spawn"), _share, (counts,)) as pool:
        asked = [pool.submit(_play_shared, i, run) for i, run in enumerate(runs)]
        while wait(asked, POLL_S, FIRST_EXCEPTION).not_done and not any(map(_has_failed, asked)):
            progress.show(counts.text)
        try:
            return [future.result() for future in asked]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _watched(progress: Progress, counts: RunCounts, number: int, num_ended: int, num_jobs: int) -> None:
    counts.set(number, num_ended, num_jobs)
    if num_ended % SHOWN_REQUESTS == 0:
        progress.show(counts.text)


def _has_failed(future: "Future[RunResult]") -> bool:
    return future.done() and future.exception() is not None


_shared: list[RunCounts] = []
"""Counts of all runs, in a process that plays some of them."""


def _share(counts: RunCounts) -> None:
    _shared.append(counts)


def _play_shared(number: int, run: ReplayRun) -> RunResult:
    return play(run, watch=partial(_shared[-1].set, number))
