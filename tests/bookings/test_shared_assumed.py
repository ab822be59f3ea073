import contextlib
import random
from collections import Counter

import pytest

from gateway import request
from gateway.bookings import shared_assumed
from gateway.bookings.shared_assumed import IN_FLIGHT, MIN_BLOCKS, SharedAssumedIndex
from gateway.bookings.shared_ledger import SharedLedger, Table
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.fleet import Fleet
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.router import Router

A, B = WorkerId("a:1"), WorkerId("b:1")
RUN = [BlockHash(1000 + i) for i in range(70)]


def table(num_rows: int = 2) -> Table:
    return Table(memoryview(bytearray(Table.num_bytes(num_rows))), num_rows, contextlib.nullcontext)


def pair(keep_s: float = 10.0) -> tuple[SharedAssumedIndex, SharedAssumedIndex]:
    shared = table()
    here, there = SharedAssumedIndex(shared, 0), SharedAssumedIndex(shared, 1)
    for index, workers in ((here, (A, B)), (there, (B, A))):
        for worker in workers:
            index.add_worker(worker, keep_s=keep_s, max_blocks=100)
    return here, there


def overlap(
    index: AssumedIndex, now: float, hashes: list[BlockHash] = RUN, **events: int
) -> dict[WorkerId, int]:
    held = {WorkerId(worker + ":1"): depth for worker, depth in events.items()}
    index.extend(hashes, held, now)
    return held


def test_blocks_in_flight_at_one_process_are_assumed_by_the_other() -> None:
    here, there = pair()
    overlap(here, 0)
    here.pin(A, RUN)
    assert (overlap(here, 0), overlap(there, 0)) == ({A: 70}, {A: 70})
    assert overlap(there, 0, a=70, b=3) == {A: 70, B: 3}


def test_branching_prompts_overlap_up_to_a_thirty_second_block() -> None:
    here, there = pair()
    overlap(here, 0)
    here.pin(A, RUN)
    other = [*RUN[:50], *(BlockHash(i) for i in range(20))]
    assert overlap(there, 0, other) == {A: 32}


def test_assumed_blocks_follow_those_known_by_events() -> None:
    here, there = pair()
    overlap(here, 0, a=20)
    here.pin(A, RUN, 20)
    assert overlap(there, 0, a=20) == {A: 70}


def test_a_batch_does_not_overwrite_the_promises_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_assumed, "MAX_PROMISED", 2)
    here, there = pair()
    batch = [[BlockHash(1000 * number + i) for i in range(9)] for number in range(3)]
    for prompt in batch:
        here.pin(A, prompt)
    assert [overlap(there, 0, prompt) for prompt in batch] == [{A: 9}, {A: 9}, {}]
    here.unpin(A, batch[0], 0, was_run=False)
    here.pin(A, batch[2])
    assert [overlap(there, 0, prompt) for prompt in batch] == [{}, {A: 9}, {A: 9}]


def test_one_prompt_is_promised_at_both_workers_of_a_disaggregated_request() -> None:
    here, there = pair()
    here.pin(A, RUN)
    here.pin(B, RUN, 20)
    assert overlap(there, 0) == {A: 70, B: 70}
    here.unpin(A, RUN, 0, was_run=False)
    assert overlap(there, 0) == {B: 70}
    here.unpin(B, RUN, 0, 20, was_run=False)
    assert overlap(there, 0) == {}


def test_small_prompts_are_not_shared() -> None:
    here, there = pair()
    small = RUN[: MIN_BLOCKS - 1]
    overlap(here, 0, small)
    here.pin(A, small)
    assert (overlap(here, 0, small), overlap(there, 0, small)) == ({A: MIN_BLOCKS - 1}, {})


def test_blocks_of_an_ended_request_are_assumed_as_long_as_at_its_own_process() -> None:
    here, there = pair(keep_s=10)
    overlap(here, 90)
    here.pin(A, RUN)
    here.unpin(A, RUN, 100, was_run=True)
    assert overlap(there, 109.9) == {A: 70}
    assert overlap(there, 110) == {}


def test_a_request_that_never_ran_leaves_no_blocks() -> None:
    here, there = pair()
    overlap(here, 0)
    first, second = list(RUN), list(RUN)
    here.pin(A, first)
    here.pin(A, second)
    here.unpin(A, first, 0, was_run=False)
    assert overlap(there, 0) == {A: 70}
    here.unpin(A, second, 0, was_run=False)
    assert overlap(there, 0) == {}


def test_a_failed_request_keeps_the_blocks_of_one_that_ran() -> None:
    here, there = pair(keep_s=10)
    overlap(here, 0)
    first, second = list(RUN), list(RUN)
    for run, was_run in ((first, True), (second, False)):
        here.pin(A, run)
        here.unpin(A, run, 0, was_run=was_run)
    assert (overlap(there, 9.9), overlap(there, 10)) == ({A: 70}, {})


def test_a_reset_and_a_drop_forget_assumed_blocks() -> None:
    here, there = pair()
    overlap(here, 0)
    for worker in (A, B):
        here.pin(worker, run := list(RUN))
        here.unpin(worker, run, 0, was_run=True)
    assert overlap(there, 1) == {A: 70, B: 70}
    here.reset_worker(A)
    assert overlap(there, 1) == {B: 70}
    here.drop_worker(B)
    assert overlap(there, 1) == {}


def test_blocks_of_a_worker_unknown_here_are_ignored() -> None:
    here, there = pair()
    there.drop_worker(A)
    overlap(here, 0)
    here.pin(A, RUN)
    assert overlap(there, 0) == {}


def test_promises_are_reported_with_their_lifetime() -> None:
    here, _ = pair(keep_s=10)
    promises: list[tuple[WorkerId, list[BlockHash], int]] = []
    here.on_promise = lambda *each: promises.append(each)
    overlap(here, 0)
    first, second, third = list(RUN), list(RUN), list(RUN)
    here.pin(A, first)
    blocks = [RUN[69], RUN[63], RUN[31]]
    assert promises == [(A, blocks, IN_FLIGHT)]
    assert list(here.in_flight()) == [(A, blocks)]
    here.pin(A, second)
    here.unpin(A, first, 1, was_run=True)
    assert promises[2:] == []  # the second request has them in flight
    here.unpin(A, second, 3, was_run=True)
    assert promises[2:] == [(A, blocks, 10_000)]
    here.pin(B, third)
    here.unpin(B, third, 3, was_run=False)
    assert promises[4:] == [(B, blocks, 0)]
    assert list(here.in_flight()) == []


def test_forgotten_workers_are_reported() -> None:
    here, _ = pair()
    forgotten: list[WorkerId] = []
    here.on_forget = forgotten.append
    here.reset_worker(A)
    here.drop_worker(B)
    assert forgotten == [A, B]


class Host:
    """Routers over one fleet, each with its own view, like the processes of a host."""

    def __init__(self, num_processes: int, num_workers: int) -> None:
        shared = table(num_processes)
        self.routers = []
        for row in range(num_processes):
            fleet, index = Fleet(), MemoryIndex()
            assumed = SharedAssumedIndex(shared, row) if num_processes > 1 else AssumedIndex()
            self.routers.append(
                Router(
                    fleet=fleet,
                    index=index,
                    assumed=assumed,
                    ledger=SharedLedger(shared, row) if num_processes > 1 else None,
                    policy=PrefixOverlap(),
                    tokenize=lambda r: Prompt((tokens_of(r.fields["prompt"]),), "ids"),
                    clock=lambda: 1.0,
                    rng=random.Random(row),
                )
            )
            for number in range(num_workers):
                worker = Worker(
                    WorkerId(f"w{number}"), f"http://w{number}", (ServedModel("m", "m"),), block_size=16
                )
                fleet.add(worker)
                index.add_worker(worker.id, root_hash("m"), 16)
                assumed.add_worker(worker.id, keep_s=600.0, max_blocks=1000)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 7])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_equal_prompts_at_once_spread_as_one_process_would_spread_them(
    num_processes: int, num_workers: int
) -> None:
    host = Host(num_processes, num_workers)
    prompt = request("/v1/completions", {"model": "m", "prompt": list(range(2000))})
    spread = Counter(host.routers[number % num_processes].decide(prompt).worker.id for number in range(64))
    assert len(spread) == num_workers
    assert max(spread.values()) - min(spread.values()) <= 1
