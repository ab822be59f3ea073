"""Engine rank in a running loop: scheduler, cache, event stream, and the timer between steps.

No task and no polling: a step ends when its timer fires, and the next one starts only if there is work, so
that an idle rank costs nothing.
"""

import asyncio
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import asdict, dataclass
from typing import Protocol

from engines.sim.cache import PrefixCache
from engines.sim.config import SimConfig
from engines.sim.faults import EventFaults, FaultPlan
from engines.sim.histogram import E2E_S, ITL_S, TTFT_S, SimHistogram
from engines.sim.publisher import EventPublisher
from engines.sim.scheduler import Scheduler, SchedulerLimits, SchedulerStep, Sequence, StepCosts
from engines.sim.wire import EventEncoder

#  Steps that start this soon after the last one was due continue it, so that timers' rounding and
# a busy loop do not add up to a slower engine; later than that, the machine cannot keep up.
MAX_LAG_S = 0.02


@dataclass(frozen=True, slots=True)
class Gauges:
    """Load as of the last step's end, which is when vLLM's gauges move."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


@dataclass(slots=True)
class SequenceClient:
    """Client that waits for a sequence: called after each of its tokens. Times are of the loop's clock."""

    on_token: Callable[[], None]
    on_failure: Callable[[], None]
    arrived: float
    last_token: float | None = None


class RankTransfers(Protocol):
    """Transfers of blocks between workers, as a rank uses them."""

    def pin(self, rank: "SimRank", sequence: Sequence) -> None: ...

    def fetch(self, rank: "SimRank", sequence: Sequence) -> None: ...

    def store(self, sequence: Sequence) -> None: ...

    def await_turn(self, sequence: Sequence) -> None: ...


class SimRank:
    def __init__(self, config: SimConfig, number: int) -> None:
        self.number = number
        self.publisher: EventPublisher | None = None
        self.transfers: RankTransfers | None = None
        self.gauges = Gauges()
        self.ttft, self.itl, self.e2e = SimHistogram(TTFT_S), SimHistogram(ITL_S), SimHistogram(E2E_S)
        self.num_steps = 0
        cache = PrefixCache(
            config.kv_blocks,
            config.block_size,
            config.model,
            config.hash,
            config.tiers,
            config.window,
            config.partial_blocks,
        )
        costs = StepCosts.of(
            config.prefill_tokens_per_s, config.decode_tokens_per_s, config.decode_batch_cost
        )
        self.scheduler = Scheduler(
            cache, SchedulerLimits(config.max_batched_tokens, config.max_num_seqs), costs
        )
        self._config = config
        self._encoder = EventEncoder(config.event_wire, config.lora)
        self._clients: dict[Sequence, SequenceClient] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._resets: list[tuple[asyncio.Future[bool], bool]] = []
        self._due = 0.0
        self._faults = FaultPlan()
        self._hung_step: SchedulerStep | None = None

    def __repr__(self) -> str:
        return f"SimRank({self.number}, {self.scheduler!r}, {self.publisher!r})"

    @property
    def load(self) -> int:
        """Load as vLLM's own balancer between ranks weighs it."""
        return 4 * self.scheduler.num_waiting + len(self.scheduler.running)

    @property
    def num_clients(self) -> int:
        """Number of sequences with a waiting client."""
        return len(self._clients)

    def stats(self) -> dict[str, object]:
        """Statistics as of now, unlike the gauges."""
        scheduler = self.scheduler
        now = {"running": len(scheduler.running), "waiting": scheduler.num_waiting, "steps": self.num_steps}
        now |= {"loading": len(scheduler.loading)}
        now |= {"free_blocks": scheduler.cache.num_free, "clients": self.num_clients}
        stream: dict[str, object] = {"next_seq": None}
        if self.publisher:
            stream = {"next_seq": self.publisher.next_seq, "held_replays": self.publisher.num_held_replays}
        return now | stream | asdict(scheduler.counts)

    def open(self, events_port: int, replay_port: int | None) -> None:
        """Start the event stream on these ports, 0 for free ones."""
        self.publisher = EventPublisher(self._config.host, self._config.topic, self._config.replay_buffer)
        self.publisher.open(events_port, replay_port)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.publisher is not None:
            self.publisher.close()
        for future, _ in self._resets:
            future.cancel()

    def submit(
        self, sequence: Sequence, on_token: Callable[[], None], on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self._clients[sequence] = SequenceClient(on_token, on_failure, self._loop.time())
        self.scheduler.add(sequence)
        if self.transfers is not None and sequence.load is not None:
            self.transfers.await_turn(sequence)
        self._wake()

    def abort(self, sequence: Sequence) -> None:
        if self._clients.pop(sequence, None) is not None:
            self.scheduler.abort(sequence)
            if not self._is_stepping:
                self._observe()
            self._wake()

    # what other workers computed ------------------------------------------------------------------

    def loaded(self, sequence: Sequence) -> None:
        if not sequence.is_finished:  # else its client has left
            self.scheduler.loaded(sequence)
            self._wake()

    def load_failed(self, sequence: Sequence, recomputes: bool) -> None:
        if sequence.is_finished:
            return
        self.scheduler.load_failed(sequence, recomputes)
        client = None if recomputes else self._clients.pop(sequence, None)
        if client is not None:
            client.on_failure()
        self._wake()

    def release(self, sequence: Sequence) -> None:
        """Free the pinned blocks of a finished prompt, which were fetched or will not be."""
        self.scheduler.release(sequence)
        if not self._is_stepping:
            self._observe()
        self._wake()

    def reset(self, with_running: bool = False) -> "asyncio.Future[bool]":
        """Empty the cache between steps. False where sequences hold blocks; `with_running` preempts them."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._resets.append((future, with_running))
        if not self._is_stepping:
            self._reset()
        return future

    def set_faults(self, faults: FaultPlan, rng: random.Random) -> None:
        self._faults = faults
        self.scheduler.cache.fail(faults.fail_blocks, rng)
        if self.publisher is not None:
            self.publisher.set_faults(EventFaults(faults, rng))
        if self._hung_step is not None and not faults.hang:
            step, self._hung_step = self._hung_step, None
            self._finish(step)

    # steps ----------------------------------------------------------------------------------------

    @property
    def _is_stepping(self) -> bool:
        return self._timer is not None or self._hung_step is not None

    def _wake(self) -> None:
        """Start a step soon, so that requests of one moment share it."""
        if not self._is_stepping and self.scheduler.has_work:
            self._timer = self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._timer = None
        step = self.scheduler.start_step()
        if self.transfers is not None and (loads := self.scheduler.take_loads()):
            for sequence in loads:
                self.transfers.fetch(self, sequence)
            self._observe()
        if step is None:
            self._observe()  # the last one may have been aborted just before
            return  # waiting sequences do not fit; the next arrival or abort wakes the rank
        now = self._loop.time()
        begin = self._due if now - self._due < MAX_LAG_S else now
        self._due = begin + step.cost_s * self._faults.slow
        self._timer = self._loop.call_at(self._due, self._finish, step)

    def _finish(self, step: SchedulerStep) -> None:
        self._timer = None
        if self._faults.hang:
            self._hung_step = step
            return
        outcome = self.scheduler.finish_step(step)
        self.num_steps += 1
        if outcome.events and self.publisher is not None:
            self.publisher.publish(self._encoder.encode(time.time(), outcome.events, self.number))
        self._keep(outcome.produced)
        self._observe()
        now = self._loop.time()
        for sequence in outcome.produced:
            self._on_token(sequence, now)
        self._reset()
        if self.scheduler.has_work and not self._is_stepping:
            self._start()

    def _keep(self, produced: Items[Sequence]) -> None:
        """Store or pin finished prompts for other workers."""
        for sequence in produced if self.transfers is not None else ():
            assert self.transfers is not None
            if sequence.stores is not None and sequence.num_output == 1:
                self.transfers.store(sequence)
            if sequence.pins is not None and sequence.is_finished:
                self.transfers.pin(self, sequence)

    def _on_token(self, sequence: Sequence, now: float) -> None:
        client = self._clients.get(sequence)
        if client is None:
            return
        if client.last_token is None:
            self.ttft.observe(now - client.arrived)
        else:
            self.itl.observe(now - client.last_token)
        client.last_token = now
        if sequence.is_finished:
            self.e2e.observe(now - client.arrived)
            del self._clients[sequence]
        client.on_token()

    def _observe(self) -> None:
        scheduler = self.scheduler
        self.gauges = Gauges(len(scheduler.running), scheduler.num_waiting, scheduler.cache.usage)

    def _reset(self) -> None:
        for future, with_running in self._resets:
            if with_running:
                self.scheduler.preempt_all()
            if not future.done():
                future.set_result(self.scheduler.cache.reset())
        self._resets.clear()
        self._wake()
