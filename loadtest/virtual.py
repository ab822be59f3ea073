"""A fleet in virtual time: the gateway's own router and policies before the simulated engine's own scheduler
and cache. Nothing waits, and nothing depends on the machine: a heap of moments is worked off.

    arrival ─► decide ─► prefill engine ─► transfer ─► decode engine ─► first token … last token
                  ▲                                          │
                  └──────── KV events, `event_delay_s` later ┘

Engines compute as `engines/sim/scheduler.py` has it: a step takes  base + a · prefill tokens + b · sequences
decoding  seconds, at most `max_batched_tokens` tokens of prompts in it. A transfer has its latency and speed,
and engines do not share a link.
"""

import heapq
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from engines.sim.cache import CachedSequence, PrefixCache
from engines.sim.pd.leg import Load
from engines.sim.scheduler import Costs, Limits, Scheduler, Step
from engines.sim.scheduler import Sequence as EngineSequence
from gateway import request
from gateway.core.blocks import root_hash
from gateway.core.decision import Decision, Prompt
from gateway.core.fleet import Fleet
from gateway.core.speeds import Speeds
from gateway.core.worker import Reported, Role, Served, Transfer, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.disaggregation import Disaggregation, Mode
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.router import Router

SCRAPE_S = 1.0
ASKED = request("/v1/completions", {"model": "m", "prompt": [1]})


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's hardware and model. `step_s` is a step that decodes one sequence alone, `seq_s` what each
    more adds; `kv_tokens` fit its cache."""

    name: str
    prefill_tokens_per_s: float
    step_s: float
    seq_s: float
    kv_tokens: int
    transfer_tokens_per_s: float
    transfer_s: float = 0.01
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256


H100_8B = Profile("h100-8b", 22_000, 0.008, 0.000_1, 400_000, 90_000)
"""Llama 3.1 8B in bf16 on one H100: 16 GB of weights at 3.35 TB/s are 5 ms of a step, with launches and
attention 8; 16 TFLOP per thousand tokens at some 40 % of 990 TFLOP/s; 55 GB of cache at 128 KiB a token; a
link of 100 Gbit/s."""
H100_70B = Profile("h100x4-70b", 8_000, 0.022, 0.000_2, 350_000, 36_000)
"""Llama 3.1 70B on four: 35 GB of weights each are 11 ms, with all-reduces 22; 320 KiB a token."""


@dataclass(slots=True, eq=False)
class Job:
    """One request of a trace, and what became of it. Seconds from the trace's begin."""

    at: float
    tokens: "array[int]"
    num_output: int
    turn: int = 1
    output: Sequence[int] = ()
    first_s: float | None = None
    last_s: float | None = None
    cached_tokens: int = 0
    is_split: bool = False
    decision: Decision | None = None

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.at

    @property
    def tpot_s(self) -> float:
        """Per token behind the first."""
        assert self.first_s is not None and self.last_s is not None
        return (self.last_s - self.first_s) / max(self.num_output - 1, 1)

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        return self.last_s is not None and self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), call))

    def run(self) -> None:
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


@dataclass(slots=True, eq=False)
class _Run:
    """A sequence in an engine, and who hears of its first and last token."""

    sequence: EngineSequence
    on_first: Callable[[], None]
    on_last: Callable[[], None]
    has_begun: bool = False


class Engine:
    """`on_events` hears what its cache tells with each step."""

    def __init__(
        self, worker: Worker, profile: Profile, block_size: int, clock: Clock, on_events: Callable[..., None]
    ) -> None:
        self.worker = worker
        cache = PrefixCache(profile.kv_tokens // block_size + 1, block_size)
        costs = Costs(profile.step_s - profile.seq_s, 1 / profile.prefill_tokens_per_s, profile.seq_s)
        self.scheduler = Scheduler(cache, Limits(profile.max_batched_tokens, profile.max_num_seqs), costs)
        self.busy_s = 0.0
        self._profile = profile
        self._clock = clock
        self._on_events = on_events
        self._runs: dict[EngineSequence, _Run] = {}
        self._is_stepping = False

    def __repr__(self) -> str:
        return f"Engine({self.worker.id}, {self.scheduler})"

    def add(
        self,
        tokens: "array[int]",
        output: Sequence[int],
        on_first: Callable[[], None],
        on_last: Callable[[], None],
        *,
        pins: str | None = None,
        loads: bool = False,
    ) -> EngineSequence:
        cached = CachedSequence(array("I", tokens))
        sequence = EngineSequence(cached, output, "length", len(tokens), pins=pins)
        if loads:
            sequence.load = Load(len(tokens), None)
        self._runs[sequence] = _Run(sequence, on_first, on_last)
        self.scheduler.add(sequence)
        self.wake()
        return sequence

    def wake(self) -> None:
        if not self._is_stepping and self.scheduler.has_work:
            self._start()

    def _start(self) -> None:
        step = self.scheduler.start_step()
        for sequence in self.scheduler.take_loads():
            profile = self._profile
            took_s = profile.transfer_s + sequence.num_external_tokens / profile.transfer_tokens_per_s
            self._clock.at(self._clock.now + took_s, partial(self._loaded, sequence))
        if step is not None:
            self._is_stepping = True
            self.busy_s += step.cost_s
            self._clock.at(self._clock.now + step.cost_s, lambda: self._finish(step))

    def _loaded(self, sequence: EngineSequence) -> None:
        self.scheduler.loaded(sequence)
        self.wake()

    def _finish(self, step: Step) -> None:
        self._is_stepping = False
        outcome = self.scheduler.finish_step(step)
        if outcome.events:
            self._on_events(self.worker.id, outcome.events)
        for sequence in outcome.produced:
            run = self._runs[sequence]
            if not run.has_begun:
                run.has_begun = True
                run.on_first()
            if sequence.is_finished:
                del self._runs[sequence]
                run.on_last()
        self.wake()


@dataclass(slots=True)
class Setup:
    """`num_prefill` of the workers compute prompts for the others; 0: each does both, for others too."""

    num_workers: int
    profile: Profile
    num_prefill: int = 0
    mode: Mode = "auto"
    block_size: int = 64
    event_delay_s: float = 0.005
    seed: int = 1


class VirtualFleet:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.clock = setup, Clock()
        profile = setup.profile
        self.fleet, self.index, self.assumed = Fleet(), MemoryIndex(), AssumedIndex()
        self.speeds = Speeds(
            prefill_tokens_per_s=profile.prefill_tokens_per_s,
            transfer_tokens_per_s=profile.transfer_tokens_per_s,
            transfer_latency_s=profile.transfer_s,
        )
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.assumed,
            policy=PrefixOverlap(),
            tokenize=lambda _: Prompt(),
            clock=lambda: self.clock.now,
            rng=random.Random(setup.seed),
            disaggregation=Disaggregation(self.speeds, {"": setup.mode}),
        )
        self.engines: dict[WorkerId, Engine] = {}
        for number in range(setup.num_workers):
            self._join(number)

    def _join(self, number: int) -> None:
        setup = self.setup
        role = Role.BOTH
        if setup.num_prefill:
            role = Role.PREFILL if number < setup.num_prefill else Role.DECODE
        name, size = WorkerId(f"w{number}"), setup.block_size
        served = (Served("m", "m"),)
        worker = Worker(name, f"http://{name}", served, block_size=size, role=role, transfer=Transfer("nixl"))
        self.fleet.add(worker)
        self.index.add_worker(name, root_hash("m"), size)
        self.assumed.add_worker(name, keep_s=1.0, max_blocks=setup.profile.kv_tokens // size)
        self.engines[name] = Engine(worker, setup.profile, size, self.clock, self._told)

    def run(self, jobs: Iterable[Job]) -> list[Job]:
        """All of them, to their ends."""
        self.jobs = list(jobs)
        self._left = len(self.jobs)
        for job in self.jobs:
            self.clock.at(job.at, partial(self._arrive, job))
        self._scrape()
        self.clock.run()
        return self.jobs

    def _told(self, worker: WorkerId, events: Sequence[object]) -> None:
        def apply() -> None:
            for event in events:
                self.index.apply(worker, event)  # type: ignore[arg-type]

        self.clock.at(self.clock.now + self.setup.event_delay_s, apply)

    def _scrape(self) -> None:
        for member in self.fleet:
            scheduler = self.engines[member.worker.id].scheduler
            member.reported = Reported(len(scheduler.running), scheduler.num_waiting, scheduler.cache.usage)
        if self._left:
            self.clock.at(self.clock.now + SCRAPE_S, self._scrape)

    def _arrive(self, job: Job) -> None:
        decision = self.router.decide(ASKED, prompt=Prompt((job.tokens,), "ids"), may_split=True)
        job.decision, job.is_split = decision, decision.prefill is not None
        if decision.prefill is None:
            self._decode(job, decision, loads=False)
            return
        began_s, engine = self.clock.now, self.engines[decision.prefill.id]

        def handed() -> None:
            self.router.prefilled(decision)
            self._learn(decision, self.clock.now - began_s)
            job.cached_tokens = prefilled.num_cached_tokens or 0
            self._decode(job, decision, loads=True, release=lambda: engine.scheduler.release(prefilled))

        prefilled = engine.add(job.tokens, [0], lambda: None, handed, pins=decision.id)

    def _decode(
        self, job: Job, decision: Decision, *, loads: bool, release: Callable[[], None] = lambda: None
    ) -> None:
        began_s, engine = self.clock.now, self.engines[decision.worker.id]

        def first() -> None:
            job.first_s = self.clock.now
            self.router.first_token(decision)
            release()
            if loads:
                self.speeds.transferred(decision.uncached_tokens, self.clock.now - began_s)
            else:
                job.cached_tokens = sequence.num_cached_tokens or 0

        def last() -> None:
            job.last_s = self.clock.now
            self._left -= 1
            self.router.finish(decision)

        output = job.output or [0] * job.num_output
        sequence = engine.add(job.tokens, output, first, last, loads=loads)

    def _learn(self, decision: Decision, seconds: float) -> None:
        """As `gateway/splits.py` does."""
        prefill = decision.split.prefill if decision.split else None
        assert prefill is not None
        self.speeds.prefilled(prefill.id, prefill.uncached_tokens + prefill.booked_tokens, seconds)
