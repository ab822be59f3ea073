"""Proof that the events read for a worker are its own."""

import asyncio
import sys
from typing import Any

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.decision import Decided, Decision, PrefillChoice, Prompt
from gateway.core.kv_events import BlocksStored
from gateway.core.multimodal import Links
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage
from gateway.core.value import replace
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.ingest.ownership import (
    MAX_RECENT,
    MAX_SENT,
    NUM_UNSEEN,
    SETTLE_S,
    UNPROVEN,
    OwnershipObserver,
    keep_proving,
    num_shared,
)
from gateway.runtime.tasks import Tasks
from tests.support.fakes import decision
from tests.support.patience import until

A, B = WorkerId("a"), WorkerId("b")
ROOT, SIZE = root_hash("root"), 16
PLACE = "tcp://h:5557"


class FakeStream:
    """Stream that records what is thought of its owner."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_disowned, self.is_read, self.has_orphans = False, True, False

    def has_orphan(self, tokens: Any, block_size: int) -> bool:
        return self.has_orphans

    def doubt_owner(self, reason: str, *, is_fault: bool) -> None:
        self.calls.append(f"{'fault' if is_fault else 'wait'}: {reason}")

    def prove_owner(self) -> None:
        self.calls.append("prove")

    def disown(self, reason: str) -> None:
        self.is_disowned = True
        self.calls.append(f"disown: {reason}")


class OwnershipWorld:
    """Worker a, of which the stream is doubted; requests go to it, or to b."""

    def __init__(self) -> None:
        self.index, self.now, self.num = MemoryIndex(), 0.0, 0
        for name in (A, B):
            self.index.add_worker(name, ROOT, SIZE)
        self.owners = OwnershipObserver(self.index, clock=lambda: self.now)
        self.stream = FakeStream()
        self.owners.watch(A, self.stream, PLACE)

    def prompt(self) -> Any:
        """Tokens of a prompt that no other shares."""
        self.num += 1
        return tokens_of(range(self.num * 1000, self.num * 1000 + 2 * SIZE + 3))

    def store(self, tokens: Any, worker: WorkerId = A) -> None:
        self.index.apply(worker, BlocksStored([self.num], None, tokens[:SIZE], SIZE))

    def send(self, tokens: Any, *names: str, salt: str | None = None, **prompt: Any) -> Decision:
        chosen = decision(f"d{self.num}", *(names or ("a",)))
        body = {"model": "m", "prompt": [1]} | ({"cache_salt": salt} if salt else {})
        blocks = hash_blocks(tokens, SIZE, ROOT, prompt_extra_keys(None, salt, len(tokens) // SIZE))
        asked = make_request("/v1/completions", body)
        self.owners.decided(Decided(chosen, Prompt((tokens,), "ids", **prompt), [blocks], asked))
        return chosen

    def end(self, chosen: Decision, how: str = "ended", status: int = 200) -> None:
        self.owners.finished(chosen, Outcome(how, status, 0.1, None, 0.2))

    def settle(self) -> None:
        self.owners.tick()
        self.now += SETTLE_S
        self.owners.tick()

    def ask(self, *, shown: bool, **options: Any) -> None:
        tokens = self.prompt()
        chosen = self.send(tokens, **options)
        if shown:
            self.store(tokens)
        self.end(chosen)
        self.settle()


@pytest.fixture
def world() -> OwnershipWorld:
    return OwnershipWorld()


def test_a_stream_is_doubted_until_a_prompt_of_its_worker_appears(world: OwnershipWorld) -> None:
    assert world.stream.calls == [f"wait: {UNPROVEN}"]
    tokens = world.prompt()
    chosen = world.send(tokens)
    world.store(tokens)
    world.end(chosen)
    world.owners.tick()
    assert len(world.stream.calls) == 1, "the events may come a moment later"
    world.settle()
    assert (world.stream.calls[1:], repr(world.owners)) == (
        ["prove"],
        "OwnershipObserver(0 streams to be proven)",
    )


def test_a_stream_without_any_of_the_prompts_is_disowned(
    world: OwnershipWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(NUM_UNSEEN):
        assert len(world.stream.calls) == 1 + number
        assert all(call.startswith("fault: ") for call in world.stream.calls[1:])
        world.store(world.prompt())  # another worker's traffic
        world.ask(shown=False)
    assert world.stream.calls[1] == (
        f"fault: a prompt that it computed did not appear in the KV events at {PLACE}"
    )
    assert world.stream.calls[2] == (
        f"fault: the last 2 prompts that it computed did not appear in the KV events at {PLACE}"
    )
    reason = f"none of {NUM_UNSEEN} prompts that it computed was in the KV events at {PLACE}"
    assert world.stream.calls[NUM_UNSEEN:] == [f"disown: {reason}"]
    (line,) = caplog.messages
    assert line.startswith(f"worker a: KV events no longer applied ({reason}): they belong to another worker")
    world.ask(shown=True)
    world.owners.watch(A, world.stream, PLACE, "another worker reads there too")
    assert len(world.stream.calls) == NUM_UNSEEN + 1


def test_prompts_that_show_nothing_are_not_counted(world: OwnershipWorld) -> None:
    for _ in range(2 * NUM_UNSEEN):
        world.ask(shown=False, salt="s")
        world.ask(shown=False, links=Links(()))
        known = world.prompt()
        world.index.apply(A, BlocksStored([world.num, -world.num], None, known[: 2 * SIZE], SIZE))
        world.end(world.send(known))
        world.end(world.send(tokens_of(range(SIZE - 1))))
        world.end(world.send(world.prompt()), "failed", 502)
        world.end(world.send(world.prompt()), "ended", 400)
        world.end(world.send(world.prompt(), "b"))
        world.settle()
    assert len(world.stream.calls) == 1


def test_a_salted_prompt_that_appears_is_a_proof(world: OwnershipWorld) -> None:
    """Where tenants' caches are kept apart, every prompt has a salt."""
    tokens = world.prompt()
    chosen = world.send(tokens, salt="s")
    keys = prompt_extra_keys(None, "s", 1)
    world.index.apply(A, BlocksStored([1], None, tokens[:SIZE], SIZE, keys))
    world.end(chosen)
    world.settle()
    assert world.stream.calls[1:] == ["prove"]


def test_a_proof_is_kept_until_the_stream_is_read_no_more(world: OwnershipWorld) -> None:
    world.ask(shown=True)
    world.owners.watch(A, world.stream, PLACE, "another worker reads there too")
    assert world.stream.calls[1:] == ["prove"]
    world.owners.drop(A, world.stream)
    world.owners.watch(A, world.stream, PLACE, "another worker reads there too")
    world.owners.watch(A, world.stream, PLACE, "another worker reads there too")
    assert world.stream.calls[2:] == ["fault: another worker reads there too"], "said once"
    world.owners.drop(A, FakeStream())
    assert repr(world.owners) == "OwnershipObserver(1 streams to be proven)"
    world.owners.drop(A, world.stream)
    assert repr(world.owners) == "OwnershipObserver(0 streams to be proven)"
    world.ask(shown=True)
    assert len(world.stream.calls) == 3


def test_a_prompt_that_another_worker_was_sent_too_proves_nothing(world: OwnershipWorld) -> None:
    """The events may be the other worker's. What only one of them was sent counts."""
    for is_first in (True, False):
        tokens = world.prompt()
        if is_first:
            world.end(world.send(tokens, "b"))
        chosen = world.send(tokens)
        if not is_first:
            world.end(world.send(tokens, "b"))
        world.index.apply(A, BlocksStored([world.num, -world.num], None, tokens[: 2 * SIZE], SIZE))
        world.end(chosen)
        world.settle()
        assert world.stream.calls[1:] == [], is_first
    tokens, end = world.prompt(), world.prompt()[:SIZE]
    world.end(world.send(tokens[:SIZE], "b"))
    chosen = world.send(tokens[:SIZE] + end)
    world.index.apply(A, BlocksStored([1001, 1002], None, tokens[:SIZE] + end, SIZE))
    world.end(chosen)
    world.settle()
    assert world.stream.calls[1:] == ["prove"]


def test_blocks_that_an_answer_reports_as_cached_prove_nothing(world: OwnershipWorld) -> None:
    """They may be credited by that answer, to a stream that is BLIND."""
    tokens = world.prompt()
    for cached in (SIZE, 2 * SIZE):
        chosen = world.send(tokens)
        world.store(tokens)
        world.owners.finished(chosen, Outcome("ended", 200, 0.1, Usage(2 * SIZE, 1, cached), 0.2))
        world.num += 1
    world.settle()
    assert world.stream.calls[1:] == []


def test_a_prompt_is_missed_only_where_it_had_to_appear(world: OwnershipWorld) -> None:
    """While a stream is not read, a batch may still come; cached blocks are not announced again; and the same
    prompt again is one prompt."""
    for _ in range(NUM_UNSEEN):
        world.stream.is_read = False
        world.ask(shown=False)
        chosen = world.send(world.prompt())
        world.stream.is_read = True
        world.end(chosen)
        world.settle()
        world.stream.has_orphans = True
        world.ask(shown=False)
        world.stream.has_orphans = False
    assert world.stream.calls[1:] == []
    tokens = world.prompt()
    for _ in range(NUM_UNSEEN):
        world.end(world.send(tokens))
        world.settle()
    assert {call.split(":")[0] for call in world.stream.calls[1:]} == {"fault"}


@pytest.mark.parametrize(
    ("some", "others", "shared"),
    [
        ([], [1], 0),
        ([1], [2], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3, 4], [1, 2, 5, 6], 2),
        ([1], [1], 1),
    ],
)
def test_shared_blocks_are_counted(some: list[int], others: list[int], shared: int) -> None:
    assert num_shared([BlockHash(n) for n in some], [BlockHash(n) for n in others]) == shared


def test_memory_is_bounded(world: OwnershipWorld) -> None:
    for _ in range(2 * MAX_SENT):
        world.send(world.prompt())
    (watched,) = world.owners._watched.values()
    assert len(watched.sent) == MAX_SENT
    assert len(world.owners._recent) == min(MAX_RECENT, 2 * MAX_SENT)
    world.ask(shown=True)
    assert len(world.owners._recent) == 0


def test_streams_are_looked_at_in_the_background() -> None:
    async def story() -> None:
        world, tasks = OwnershipWorld(), Tasks()
        tasks.start("prove", keep_proving(world.owners, 0.001))
        tokens = world.prompt()
        chosen = world.send(tokens)
        world.store(tokens)
        world.end(chosen)
        world.now += SETTLE_S
        await until(lambda: world.stream.calls[1:] == ["prove"])
        await tasks.stop()

    asyncio.run(story())


def test_a_prefill_worker_is_proven_by_the_prompts_that_it_computes(world: OwnershipWorld) -> None:
    tokens = world.prompt()
    made = decision("d1", "b", "a")
    chosen = replace(made, split=PrefillChoice("sooner", made.candidates[1], candidates=made.candidates[1:]))
    assert chosen.prefill is not None
    blocks = hash_blocks(tokens, SIZE, ROOT, None)
    asked = make_request("/v1/completions", {"model": "m", "prompt": [1]})
    world.owners.decided(Decided(chosen, Prompt((tokens,), "ids"), [blocks], asked))
    world.store(tokens)
    world.end(chosen)
    world.settle()
    assert world.stream.calls[1:] == ["prove"]


def test_prompts_are_awaited_only_while_the_stream_is_read(world: OwnershipWorld) -> None:
    world.stream.is_read = False
    world.owners.tick()
    world.ask(shown=True)
    assert "prove" not in world.stream.calls
    world.stream.is_read = True
    world.settle()
    world.ask(shown=True)
    assert world.stream.calls[-1] == "prove"


def test_a_request_costs_one_call_while_no_stream_is_read(world: OwnershipWorld) -> None:
    """Engines that publish no events are watched for ever."""
    world.stream.is_read = False
    world.owners.tick()
    for _ in range(MAX_RECENT):
        world.send(world.prompt())
    chosen, tokens = decision("d", "a"), world.prompt()
    asked = make_request("/v1/completions", {"model": "m", "prompt": [1]})
    decided = Decided(chosen, Prompt((tokens,), "ids"), [hash_blocks(tokens, SIZE, ROOT)], asked)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        world.owners.decided(decided)
    finally:
        sys.setprofile(None)
    assert calls == ["decided"]
