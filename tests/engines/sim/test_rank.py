"""Rank in a loop: it steps only while there is work, and calls each client once per token."""

import asyncio
import random
from array import array
from collections.abc import Callable

from engines.sim import SimConfig
from engines.sim.cache import CachedSequence
from engines.sim.faults import FaultPlan
from engines.sim.rank import Gauges, SimRank
from engines.sim.scheduler import Sequence
from tests.support.patience import patience

FAST = SimConfig(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=1e7, kv_blocks=100)


def request(num_prompt: int = 20, num_output: int = 5, first: int = 0) -> Sequence:
    tokens = array("I", range(first, first + num_prompt))
    return Sequence(CachedSequence(tokens), list(range(num_output)), "length", num_prompt)


async def finished(submit: Callable[[Callable[[], None]], None], sequence: Sequence) -> int:
    """Number of calls until it was finished."""
    done = asyncio.get_running_loop().create_future()
    reported = 0

    def on_token() -> None:
        nonlocal reported
        reported += 1
        if sequence.is_finished:
            done.set_result(reported)

    submit(on_token)
    async with asyncio.timeout(patience(5)):
        return int(await done)


async def test_a_sequence_is_reported_token_by_token_and_then_the_rank_is_idle() -> None:
    rank = SimRank(FAST, 0)
    sequence = request()
    assert await finished(lambda reported: rank.submit(sequence, reported), sequence) == 5
    assert (rank.num_steps, rank.num_clients, rank.scheduler.has_work) == (5, 0, False)
    assert rank._timer is None, "nothing is scheduled"
    assert (rank.ttft.count, rank.itl.count, rank.e2e.count) == (1, 4, 1)


async def test_requests_at_one_time_share_a_step() -> None:
    rank = SimRank(FAST, 0)
    first, second = request(), request(first=500)
    rank.submit(first, lambda: None)
    await finished(lambda reported: rank.submit(second, reported), second)
    assert rank.num_steps == 5


async def test_gauges_move_with_steps() -> None:
    rank = SimRank(FAST, 0)
    first = request()
    seen: list[Gauges] = []
    rank.submit(first, lambda: seen.append(rank.gauges))
    assert rank.gauges == Gauges()
    second = request(first=900, num_output=9)
    await finished(lambda reported: rank.submit(second, reported), second)
    assert [gauges.num_running for gauges in seen] == [2, 2, 2, 2, 1]
    assert rank.gauges.num_running == 0


async def test_a_reset_waits_for_the_step_and_fails_while_blocks_are_held() -> None:
    rank = SimRank(FAST, 0)
    sequence = request()
    reported = asyncio.Event()
    rank.submit(sequence, reported.set)
    await reported.wait()
    assert await rank.reset() is False
    assert await rank.reset(with_running=True) is True
    assert sequence.num_preemptions == 1
    rank.abort(sequence)
    rank.close()


async def test_an_idle_rank_resets_at_once() -> None:
    rank = SimRank(FAST, 0)
    assert rank.reset().result() is True


async def test_an_aborted_sequence_is_no_longer_reported() -> None:
    rank = SimRank(FAST, 0)
    first, second = request(num_output=500), request(first=300)
    reported: list[int] = []

    def on_token() -> None:
        reported.append(1)
        rank.abort(first)

    rank.submit(first, on_token)
    await finished(lambda on_token: rank.submit(second, on_token), second)
    assert len(reported) == 1
    assert (rank.scheduler.counts.aborts, rank.num_clients) == (1, 0)


async def test_a_rank_is_idle_after_its_only_sequence_was_aborted_between_two_steps() -> None:
    rank, loop = SimRank(FAST, 0), asyncio.get_running_loop()
    sequence, begun = request(num_output=500), asyncio.Event()

    def on_token() -> None:
        loop.call_soon(rank.abort, sequence)  # before the next step, which is called soon after this
        begun.set()

    rank.submit(sequence, on_token)
    await begun.wait()
    while rank._is_stepping:  # noqa: ASYNC110 - the end of a step is not announced
        await asyncio.sleep(0)
    assert rank.gauges == Gauges(0, 0, 0.0)


async def test_a_hung_step_ends_when_the_fault_does() -> None:
    rank = SimRank(FAST, 0)
    rank.set_faults(FaultPlan(hang=True), random.Random(1))
    sequence = request(num_output=1)
    done = asyncio.Event()
    rank.submit(sequence, done.set)
    while rank._hung_step is None:  # noqa: ASYNC110 - the end of a step that hangs is not announced
        await asyncio.sleep(0)
    assert not done.is_set()
    rank.set_faults(FaultPlan(), random.Random(1))
    assert done.is_set()


async def test_waiting_requests_weigh_more_in_the_load() -> None:
    rank = SimRank(SimConfig(max_num_seqs=1), 0)
    for index in range(3):
        rank.submit(request(first=100 * index), lambda: None)
    assert rank.load == 12
    rank.close()
