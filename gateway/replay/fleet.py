"""Fleet in virtual time: the gateway's own router and policies before the simulated engine's scheduler and
cache. Nothing waits, and nothing depends on the machine.

    arrival ─► decide ─► an engine, or two (exchange.py) ─► first token … last token
                  ▲                    │
                  └── KV events, `event_delay_s` later; gauges, each SCRAPE_S

Transfers have their latency and speed, and engines do not share a link.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from gateway.core.blocks import Tokens, root_hash
from gateway.core.decision import Prompt
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksRemoved, KvEvent
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.base import Policy
from gateway.policies.disaggregation import DisaggregationPolicy, Mode
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.replay.clock import Clock
from gateway.replay.context_limit import admitted
from gateway.replay.engine import VirtualEngine
from gateway.replay.exchange import VirtualExchange
from gateway.replay.job import MODEL, ReplayJob, adapter_of, worker_of
from gateway.replay.placement_bounds import AllKnowing, AsRecorded, pooled
from gateway.replay.profile import Profile
from gateway.routing.router import Router
from gateway.routing.speed_model import SpeedModels

SCRAPE_S = 1.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart of a worker, by its number: it loses its cache and its queue at `at_s`; requests that were
    there are sent again. It takes none for `down_s`."""

    at_s: float
    worker: int
    down_s: float = 0.0


@dataclass(slots=True)
class Setup:
    """Setup of a fleet. `num_prefill` of the workers compute prompts for the others; 0: each does both, for
    others too unless `mode` is never. `profiles` has one for each worker, where they differ. `policy` makes
    one for each fleet. `served` has the models of each worker; empty: there is only one model. `glides` False
    takes each step by itself: the same, and slow. `max_model_len` is the context limit of prompt and answer
    together; 0: what the smallest cache holds."""

    num_workers: int
    profile: Profile
    num_prefill: int = 0
    mode: Mode = "never"
    block_size: int = 64
    event_delay_s: float = 0.005
    seed: int = 1
    policy: Callable[[], Policy] = ExpectedTtft
    profiles: Sequence[Profile] = ()
    restarts: Sequence[Restart] = ()
    served: Sequence[Sequence[str]] = ()
    glides: bool = True
    max_model_len: int = 0

    @property
    def context_tokens(self) -> int:
        least = min(profile.kv_tokens for profile in self.profiles or [self.profile])
        return self.max_model_len or least // self.block_size * self.block_size

    def models_of(self, number: int) -> Sequence[str]:
        return self.served[number] if self.served else (MODEL,)

    def profile_of(self, number: int) -> Profile:
        return self.profiles[number] if self.profiles else self.profile


def pooled_of(setup: Setup) -> Setup:
    """Setup with one worker for all, which never restarts. It accepts the same requests."""
    profile = pooled(setup.profiles or [setup.profile] * setup.num_workers)
    return replace(
        setup,
        num_workers=1,
        profile=profile,
        profiles=(),
        restarts=(),
        served=[sorted({model for some in setup.served for model in some})] if setup.served else (),
        num_prefill=0,
        mode="never",
        max_model_len=setup.context_tokens,
    )


class VirtualFleet:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.clock = setup, Clock()
        profile = setup.profile
        self.fleet, self.index, self.assumed = Fleet(), MemoryIndex(), AssumedIndex()
        self.transfer = TransferSpeed(
            tokens_per_s=profile.transfer_tokens_per_s, latency_s=profile.transfer_s
        )
        self.may_split = setup.mode != "never" or setup.num_prefill > 0
        policy = setup.policy()
        self.look = self._eyes(policy)
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.assumed,
            policy=policy,
            tokenize=lambda _: Prompt(),
            clock=lambda: self.clock.now,
            rng=random.Random(setup.seed),
            disaggregation=DisaggregationPolicy(self.transfer, {"": setup.mode}),
            speed_models=SpeedModels.of(),
        )
        self.engines: dict[WorkerId, VirtualEngine] = {}
        self._chance = random.Random(setup.seed + 1)
        self._noise: list[float] = []
        self._scrapes = False
        self.open: dict[VirtualExchange, None] = {}
        self.jobs: list[ReplayJob] = []
        self.num_rejected = self.num_truncated = 0
        self._num_ended = 0
        self._watch: Callable[[int, int], None] = _unwatched
        for number in range(setup.num_workers):
            self._join(number)

    def __repr__(self) -> str:
        return f"VirtualFleet({self.router}, {self.clock})"

    def _eyes(self, policy: Policy) -> Callable[[ReplayJob, Tokens], None] | None:
        """Direct view of the engines for policies that no gateway can have; None for others."""
        if isinstance(policy, AllKnowing):
            return lambda job, tokens: policy.look(tokens, self.engines, job.adapter)
        if isinstance(policy, AsRecorded):
            return lambda job, _: policy.look(job)
        return None

    def run(
        self, jobs: Iterable[ReplayJob], watch: Callable[[int, int], None] | None = None
    ) -> list[ReplayJob]:
        """Run all jobs that the engines accept to their ends. `watch` gets the number of ended ones, and of
        all. Raises ConfigError where requests wait for ever."""
        accepted = admitted(jobs, self.setup.context_tokens)
        self.jobs, self.num_rejected, self.num_truncated = (
            accepted.jobs,
            accepted.num_rejected,
            accepted.num_truncated,
        )
        self._watch = watch or _unwatched
        for job in self.jobs:
            self.clock.at(job.at, VirtualExchange(self, job).start)
        for restart in self.setup.restarts:
            self.clock.at(restart.at_s, partial(self._restart, restart))
        self.clock.run()
        return self.jobs

    def _join(self, number: int) -> None:
        setup = self.setup
        role = Role.BOTH
        if setup.num_prefill:
            role = Role.PREFILL if number < setup.num_prefill else Role.DECODE
        name, size = worker_of(number), setup.block_size
        transfer = Transfer("nixl") if self.may_split else None
        served = tuple(ServedModel(model, MODEL, adapter_of(model)) for model in setup.models_of(number))
        num_blocks = setup.profile_of(number).kv_tokens // size
        worker = Worker(
            name,
            f"http://{name}",
            served,
            block_size=size,
            num_blocks=num_blocks,
            role=role,
            transfer=transfer,
        )
        self.fleet.add(worker).stream = StreamState.EXACT
        self.index.add_worker(name, root_hash(MODEL), size)
        self.assumed.add_worker(name, keep_s=1.0, max_blocks=num_blocks)
        self._boot(number)

    def _boot(self, number: int) -> None:
        setup, name = self.setup, worker_of(number)
        on_events = partial(self._on_events, name)
        engine = VirtualEngine(
            setup.profile_of(number), setup.block_size, self.clock, on_events, glides=setup.glides
        )
        self.engines[name] = engine

    def _on_events(self, worker: WorkerId, events: Sequence[KvEvent]) -> None:
        apply = partial(self._apply, worker, self.engines[worker], events)
        self.clock.at(self.clock.now + self.setup.event_delay_s, apply)

    def _apply(self, worker: WorkerId, engine: VirtualEngine, events: Sequence[KvEvent]) -> None:
        if self.engines[worker] is engine:  # else it is another one meanwhile, of which this is not true
            for event in _merged(events):
                self.index.apply(worker, event)

    def _scrape(self) -> None:
        for member in self.fleet:
            member.reported = self.engines[member.worker.id].reported
        self._scrapes = bool(self.open)
        if self._scrapes and self.clock.is_idle:
            raise ConfigError(f"{len(self.open)} requests wait for cache blocks that are never free")
        if self._scrapes:
            self.clock.at((self.clock.now // SCRAPE_S + 1) * SCRAPE_S, self._scrape)

    def began(self, exchange: VirtualExchange) -> None:
        """Restart probes with a first request: none are needed while nothing is in flight; a recording may
        have nights in it."""
        self.open[exchange] = None
        if not self._scrapes:
            self._scrapes = True
            self.clock.at((self.clock.now // SCRAPE_S + 1) * SCRAPE_S, self._scrape)

    def ended(self, exchange: VirtualExchange) -> None:
        del self.open[exchange]
        self._num_ended += 1
        self._watch(self._num_ended, len(self.jobs))

    def noise_of(self, profile: Profile) -> float:
        """Noise for one request, dealt as cards are: each value comes once before any comes again, so that a
        few requests have the distribution of many."""
        if not profile.noise_s:
            return 0.0
        if not self._noise:
            self._noise = self._chance.sample(profile.noise_s, len(profile.noise_s))
        return self._noise.pop()

    def _restart(self, restart: Restart) -> None:
        name = worker_of(restart.worker)
        old = self.engines[name]
        old.stop()
        self.index.reset_worker(name)
        self.assumed.reset_worker(name)
        while self.index.sweep():
            pass  # between requests, in a gateway
        for exchange in list(self.open):
            exchange.lose(name)
        self._boot(restart.worker)
        if restart.down_s:
            self._set_up(name, False)
            self.clock.at(self.clock.now + restart.down_s, partial(self._set_up, name, True))

    def _set_up(self, name: WorkerId, is_up: bool) -> None:
        member = self.fleet.get(name)
        assert member is not None
        member.is_up = is_up


def _unwatched(num_ended: int, num_jobs: int) -> None:
    """Do nothing: default where nothing shows the progress."""


def _merged(events: Sequence[KvEvent]) -> Iterator[KvEvent]:
    """Merge neighbouring removals into one, which is equivalent: they are most of all events."""
    for kind, some in groupby(events, type):
        if kind is BlocksRemoved:
            removed = [
                name for event in some if isinstance(event, BlocksRemoved) for name in event.engine_hashes
            ]
            yield BlocksRemoved(removed)
        else:
            yield from some
