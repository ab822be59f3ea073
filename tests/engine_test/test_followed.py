"""Events of a worker in an index of their own, from a simulated engine."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from engines import ENGINES
from engines.sim import Sim, SimConfig
from gateway.core.worker import Worker
from gateway.discovery.engine_detection import Engines
from gateway.discovery.probe import Probe
from gateway.discovery.probed import event_source, workers_of
from gateway.engine_test.followed import Followed, following, hashes_of
from gateway.engine_test.subject import Subject
from gateway.upstream.control_client import ControlSession

pytestmark = pytest.mark.process


@asynccontextmanager
async def followed(num_ranks: int = 1, *, events: bool = True) -> AsyncIterator[tuple[Subject, Followed]]:
    sim = await Sim(SimConfig(port=0, dp_size=num_ranks, events=events)).start()
    engines = Engines(ENGINES)
    async with ControlSession(timeout_s=10.0) as session:
        probe = Probe(sim.url, engines, session, {}, 5557)
        await probe.check_health()
        facts = await probe.facts()
        workers: Sequence[Worker] = workers_of(facts)
        async with following(
            workers, lambda worker: event_source(facts, worker.dp_rank, 5557, 0), engines.named, session, {}
        ) as found:
            yield Subject(sim.url, facts, probe, session), found
    await sim.stop()


async def test_a_prompt_is_held_by_the_rank_that_computed_it() -> None:
    async with followed(num_ranks=2) as (subject, found):
        first, second = subject.workers
        assert await found.is_exact_within(first, 5.0)
        prompt = subject.fresh_prompt(3 * subject.block_size + 1)
        await subject.complete(prompt, dp_rank=1)
        assert await found.holds_within(second, prompt, 3, 5.0)
        assert found.overlap(first, prompt) == 0
        assert found.blocks(second) >= set(hashes_of(second, prompt))
        assert found.num_stored(second) >= 3


async def test_a_prompt_that_was_never_sent_is_not_held() -> None:
    async with followed() as (subject, found):
        worker = subject.worker
        assert await found.is_exact_within(worker, 5.0)
        await found.is_settled(0.1)
        assert not await found.holds_within(worker, subject.fresh_prompt(33), 1, 0.1)


async def test_a_worker_without_a_publisher_has_no_state() -> None:
    async with followed(events=False) as (subject, found):
        assert found.state(subject.worker) is None
