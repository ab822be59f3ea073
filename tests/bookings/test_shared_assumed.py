import contextlib
import random
from collections import Counter

import pytest

from gateway import request
from gateway.bookings.shared_assumed import IN_FLIGHT, MIN_BLOCKS, SharedAssumedIndex
from gateway.bookings.shared_ledger import SharedLedger, Table
from gateway.core.blocks import BlockHash, root_hash, tokens_of
from gateway.core.fleet import Fleet
from gateway.core.worker import Served, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.router import Prompt, Router

A, B = WorkerId("a:1"), WorkerId("b:1")
RUN = [BlockHash(1000 + i) for i in range(70)]


def table(num_rows: int = 2) -> Table:
    return Table(memoryview(bytearray(Table.num_bytes(num_rows))), num_rows, contextlib.nullcontext)


def pair(keep_s: float = 10.0) -> tuple[SharedAssumedIndex, SharedAssumedIndex]:
    shared = table()
    one, two = SharedAssumedIndex(shared, 0), SharedAssumedIndex(shared, 1)
    for index, workers in ((one, (A, B)), (two, (B, A))):
        for worker in workers:
            index.add_worker(worker, keep_s=keep_s, max_blocks=100)
    return one, two


def overlap(
    index: AssumedIndex, now: float, hashes: list[BlockHash] = RUN, **events: int
) -> dict[WorkerId, int]:
    held = {WorkerId(worker + ":1"): depth for worker, depth in events.items()}
    index.extend(hashes, held, now)
    return held


def test_what_one_process_has_in_flight_the_other_sees() -> None:
    one, two = pair()
    overlap(one, 0)
    one.pin(A, RUN)
    assert (overlap(one, 0), overlap(two, 0)) == ({A: 70}, {A: 70})
    assert overlap(two, 0, a=70, b=3) == {A: 70, B: 3}


def test_prompts_that_part_are_seen_to_the_thirty_second_block() -> None:
    one, two = pair()
    overlap(one, 0)
    one.pin(A, RUN)
    other = [*RUN[:50], *(BlockHash(i) for i in range(20))]
    assert overlap(two, 0, other) == {A: 32}


def test_it_is_there_behind_what_events_tell() -> None:
    one, two = pair()
    overlap(one, 0, a=20)
    one.pin(A, RUN[20:])
    assert overlap(two, 0, a=20) == {A: 70}


def test_of_a_prompt_that_was_not_looked_up_the_last_block_is_told() -> None:
    one, two = pair()
    overlap(one, 0, [BlockHash(i) for i in range(9)])
    one.pin(A, RUN)
    assert overlap(two, 0) == {A: 70}
    assert overlap(two, 0, RUN[:64]) == {}


def test_small_prompts_are_not_told() -> None:
    one, two = pair()
    small = RUN[: MIN_BLOCKS - 1]
    overlap(one, 0, small)
    one.pin(A, small)
    assert (overlap(one, 0, small), overlap(two, 0, small)) == ({A: MIN_BLOCKS - 1}, {})


def test_after_its_end_it_counts_as_long_as_at_home() -> None:
    one, two = pair(keep_s=10)
    overlap(one, 90)
    one.pin(A, RUN)
    one.unpin(A, RUN, 100, was_run=True)
    assert overlap(two, 109.9) == {A: 70}
    assert overlap(two, 110) == {}


def test_a_request_that_never_ran_leaves_nothing() -> None:
    one, two = pair()
    overlap(one, 0)
    first, second = list(RUN), list(RUN)
    one.pin(A, first)
    one.pin(A, second)
    one.unpin(A, first, 0, was_run=False)
    assert overlap(two, 0) == {A: 70}
    one.unpin(A, second, 0, was_run=False)
    assert overlap(two, 0) == {}


def test_one_that_ran_before_keeps_what_a_failed_one_promised() -> None:
    one, two = pair(keep_s=10)
    overlap(one, 0)
    first, second = list(RUN), list(RUN)
    for run, was_run in ((first, True), (second, False)):
        one.pin(A, run)
        one.unpin(A, run, 0, was_run=was_run)
    assert (overlap(two, 9.9), overlap(two, 10)) == ({A: 70}, {})


def test_a_reset_and_a_drop_forget_what_was_promised() -> None:
    one, two = pair()
    overlap(one, 0)
    for worker in (A, B):
        one.pin(worker, run := list(RUN))
        one.unpin(worker, run, 0, was_run=True)
    assert overlap(two, 1) == {A: 70, B: 70}
    one.reset_worker(A)
    assert overlap(two, 1) == {B: 70}
    one.drop_worker(B)
    assert overlap(two, 1) == {}


def test_of_a_worker_that_is_unknown_here_nothing_is_told() -> None:
    one, two = pair()
    two.drop_worker(A)
    overlap(one, 0)
    one.pin(A, RUN)
    assert overlap(two, 0) == {}


def test_what_is_promised_is_told_and_how_long_it_holds() -> None:
    one, _ = pair(keep_s=10)
    told: list[tuple[WorkerId, list[BlockHash], int]] = []
    one.on_promise = lambda *each: told.append(each)
    overlap(one, 0)
    first, second, third = list(RUN), list(RUN), list(RUN)
    one.pin(A, first)
    blocks = [RUN[69], RUN[63], RUN[31]]
    assert told == [(A, blocks, IN_FLIGHT)]
    assert list(one.in_flight()) == [(A, blocks)]
    one.pin(A, second)
    one.unpin(A, first, 1, was_run=True)
    assert told[2:] == []  # another one has them in flight
    one.unpin(A, second, 3, was_run=True)
    assert told[2:] == [(A, blocks, 10_000)]
    one.pin(B, third)
    one.unpin(B, third, 3, was_run=False)
    assert told[4:] == [(B, blocks, 0)]
    assert list(one.in_flight()) == []


def test_what_is_forgotten_is_told() -> None:
    one, _ = pair()
    forgotten: list[WorkerId] = []
    one.on_forget = forgotten.append
    one.reset_worker(A)
    one.drop_worker(B)
    assert forgotten == [A, B]


class Host:
    """Routers over one fleet, each with its own view, as the processes of a host have them."""

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
                    WorkerId(f"w{number}"), f"http://w{number}", (Served("m", "m"),), block_size=16
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
