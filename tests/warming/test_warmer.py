"""The warmer: when it sends, how much, and what it books."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engines import ENGINES
from gateway import request
from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.decision import Decided, Prompt
from gateway.core.eligibility import Eligibility
from gateway.core.event_stream import StreamState
from gateway.core.worker import Role, ServedModel, Worker, WorkerId
from gateway.warming.hot_prefixes import HotPrefixes
from gateway.warming.warmer import MAX_TRIES, Warmer, WarmingLimits, WarmingSources, refusal_of
from tests.support.worlds.router import RouterWorld

SIZE = 16
OLD = Worker(WorkerId("old"), "http://old", (ServedModel("m", "m"),), block_size=SIZE, num_blocks=100)
NEW = replace(OLD, id=WorkerId("new"), url="http://new")
ONE, TWO = list(range(160)), list(range(500, 820))


class WarmingWorld:
    """A worker that joined beside another one, and prefixes that many requests shared."""

    def __init__(self, new: Worker = NEW, *, share: float = 1.0, **limits: Any) -> None:
        self.world = RouterWorld(OLD, new)
        self.world.fleet.eligibility = Eligibility(ENGINES)
        self.new, self.now = new, 0.0
        self.bodies: list[dict[str, Any]] = []
        self.failure: str | None = None
        self.during: Callable[[], None] = lambda: None
        self.on_sleep: Callable[[], None] = lambda: None
        self.holds: list[float] = []
        self.is_held = True
        self.parts: list[float] = []
        self.freed: list[WorkerId] = []
        router = self.world.router
        sources = WarmingSources(
            self.world.fleet,
            self.world.index,
            self.world.assumed,
            router.ledger,
            self._send,
            lambda engine: None,
            self.freed.append,
            self._hold,
            lambda worker, part: self.parts.append(part),
        )
        prefixes = HotPrefixes(1 << 20, 600.0)
        limit = WarmingLimits(share, **limits)
        self.warmer = Warmer(sources, prefixes, limit, lambda: self.now, self._sleep)

    async def _send(self, worker: Worker, body: bytes, left_s: float) -> str | None:
        self.bodies.append(msgspec.json.decode(body))
        self.during()
        return self.failure

    def _hold(self, worker: WorkerId, seconds: float) -> bool:
        self.holds.append(seconds)
        return self.is_held

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()
        await asyncio.sleep(0)

    def heat(self, prefix: list[int], num: int = 100, **fields: Any) -> None:
        for number in range(num):
            self.ask([*prefix, *[1000 + number] * SIZE], **fields)

    def ask(self, ids: list[int], **fields: Any) -> None:
        made = request("/v1/completions", {"model": "m", "prompt": ids, **fields})
        decision = self.world.router.decide(made, exclude=(self.new.id,))
        tokens = tokens_of(ids)
        salt = [[made.cache_salt]] if made.cache_salt else None
        blocks = hash_blocks(tokens, SIZE, root_hash("m"), salt)
        self.warmer.decided(Decided(decision, Prompt((tokens,)), [blocks], made))
        self.world.router.finish(decision)

    async def warm(self) -> list[list[int]]:
        """Return the prompts that the new worker got."""
        self.warmer.joined([self.new])
        await asyncio.gather(*self.warmer._tasks._tasks)
        return [body["prompt"] for body in self.bodies]

    def num_in_flight(self) -> int:
        return self.world.router.ledger.load(self.new.id).num_in_flight


async def test_prefixes_go_one_by_one_the_hottest_first() -> None:
    w = WarmingWorld()
    w.heat(ONE, 100)
    w.heat(TWO, 200)
    in_flight: list[int] = []
    w.during = lambda: in_flight.append(w.num_in_flight())
    assert await w.warm() == [TWO, ONE]
    assert in_flight == [1, 1]
    assert (w.num_in_flight(), w.freed) == (0, [w.new.id, w.new.id])
    assert (w.holds, w.parts) == ([5.0], [1.0])
    assert (w.warmer.counts.requests, w.warmer.counts.tokens) == ({"done": 2}, 480)


async def test_a_worker_that_is_not_held_back_is_sent_pieces_of_a_tenth_of_a_second() -> None:
    """The first prefix shows that it computes 100 tokens per second."""
    w = WarmingWorld()
    w.heat(ONE, 100)
    w.heat(TWO, 200)
    w.is_held = False

    def compute_first() -> None:
        w.now += 3.2 if len(w.bodies) == 1 else 0.01

    w.during = compute_first
    lengths = [len(prompt) for prompt in await w.warm()]
    assert lengths[:2] == [len(TWO), SIZE]
    assert lengths[1:] == sorted(set(lengths[1:])) and lengths[-1] == len(ONE), "each goes on where one ended"
    assert w.warmer.counts.tokens == len(ONE) + len(TWO)


async def test_never_more_than_the_share_of_the_cache_whatever_fills_it() -> None:
    w = WarmingWorld(share=0.2)  # 320 of 1600 tokens
    w.heat(ONE, 100)
    w.heat(TWO, 200)
    assert await w.warm() == [TWO]
    other = WarmingWorld(share=0.2)
    other.world.store("new", list(range(2000, 2016)))
    other.heat(ONE, 100)
    other.heat(TWO, 200)
    assert await other.warm() == [ONE], "one block is used: the longer one does not fit"


async def test_never_more_prefixes_than_allowed() -> None:
    w = WarmingWorld(max_prefixes=1)
    w.heat(ONE, 100)
    w.heat(TWO, 200)
    assert await w.warm() == [TWO]


async def test_what_it_holds_is_not_sent_again() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.world.store("new", ONE)
    assert await w.warm() == []
    assert w.warmer.counts.skipped == {"no_prefixes": 1}
    assert (w.holds, w.parts) == ([], [])


async def test_nothing_is_sent_while_it_has_requests_nor_after_the_time() -> None:
    w = WarmingWorld(max_s=2.0)
    w.heat(ONE)
    booking = w.world.router.ledger.book(w.new.id, 10, 10)
    assert await w.warm() == []
    assert w.now == pytest.approx(2.0, abs=0.1)
    w.world.router.ledger.release(booking)
    assert await w.warm() == [ONE]


async def test_events_of_the_worker_are_followed_first_for_a_while() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    member = w.world.fleet.get(w.new.id)
    assert member is not None
    member.stream = StreamState.CATCHING_UP
    w.during = lambda: None
    assert await w.warm() == [ONE]
    assert w.now == pytest.approx(2.0, abs=0.1)


async def test_a_failure_ends_it_and_a_cancellation_is_tried_again_a_few_times() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.heat(TWO, 200)
    w.failure = "answered 400"
    assert await w.warm() == [TWO]
    assert w.warmer.counts.requests == {"failed": 1}
    assert w.parts == [0.0], "it is held back no longer"
    again = WarmingWorld()
    again.heat(ONE)
    again.failure = ""
    assert await again.warm() == [ONE] * MAX_TRIES
    assert again.warmer.counts.requests == {"cancelled": MAX_TRIES}
    assert again.world.assumed.num_kept(again.new.id) == 0, "nothing is assumed of what was cancelled"


async def test_a_worker_that_leaves_is_sent_no_more() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.heat(TWO, 200)
    w.during = lambda: w.world.fleet.drop(w.new.id)
    assert await w.warm() == [TWO]


async def test_a_worker_that_restarted_is_sent_prefixes_once_it_is_up() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.world.fleet.set_up(w.new.id, False)
    w.on_sleep = lambda: w.world.fleet.set_up(w.new.id, w.now > 1.0)
    assert await w.warm() == [ONE]


async def test_a_worker_that_stays_down_is_sent_nothing() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.world.fleet.set_up(w.new.id, False)
    assert await w.warm() == []
    assert w.now == pytest.approx(2.0, abs=0.1)


async def test_share_of_busy_time_is_that_of_the_requests_which_found_the_worker_busy() -> None:
    w = WarmingWorld()
    w.heat(ONE, 20)
    assert w.warmer.busy(OLD.id) == 0.0
    booking = w.world.router.ledger.book(OLD.id, 10, 10)
    w.heat(ONE, 10)
    assert w.warmer.busy(OLD.id) == pytest.approx(1 - 0.9**10)
    w.world.router.ledger.release(booking)
    w.world.fleet.drain(OLD.id, True)
    assert w.warmer.busy(OLD.id) is None
    w.world.fleet.drop(OLD.id)
    w.warmer.forget()
    assert w.warmer._busy == {}


async def test_a_salted_prefix_is_sent_only_where_salts_keep_caches_apart() -> None:
    w = WarmingWorld()
    w.heat(ONE, cache_salt="a")
    assert await w.warm() == [ONE]
    assert [body["cache_salt"] for body in w.bodies] == ["a"]
    other = WarmingWorld(replace(NEW, engine="llamacpp"))
    other.heat(ONE, cache_salt="a")
    assert await other.warm() == []


async def test_other_models_adapters_block_sizes_and_lengths_are_left_out() -> None:
    for other in (
        replace(NEW, served=(ServedModel("n", "n"),)),
        replace(NEW, served=(ServedModel("m", "m", adapter="lora"),)),
        replace(NEW, block_size=32),
        replace(NEW, served=(ServedModel("m", "m", max_model_len=len(ONE)),)),
        replace(NEW, served=(ServedModel("m", "m", paths=frozenset({"/v1/chat/completions"})),)),
    ):
        w = WarmingWorld(other)
        w.heat(ONE)
        assert await w.warm() == [], other


async def test_it_asks_by_the_name_that_chooses_at_the_worker() -> None:
    w = WarmingWorld(replace(NEW, served=(ServedModel("n", "m", called="base:n"),)))
    w.heat(ONE)
    await w.warm()
    assert [body["model"] for body in w.bodies] == ["base:n"]


async def test_without_a_share_nothing_begins() -> None:
    w = WarmingWorld(share=0.0)
    w.heat(ONE)
    assert await w.warm() == []
    assert w.warmer.counts.skipped == {}


async def test_another_process_of_a_worker_is_warmed_again_and_an_end_forgets_all() -> None:
    w = WarmingWorld()
    w.heat(ONE)
    w.warmer.joined([w.new])
    w.warmer.joined([w.new])
    await asyncio.gather(*w.warmer._tasks._tasks, return_exceptions=True)
    assert [body["prompt"] for body in w.bodies] == [ONE]
    w.warmer.joined([w.new])
    w.warmer.end()
    await asyncio.gather(*w.warmer._tasks._tasks, return_exceptions=True)
    assert (len(w.bodies), len(w.warmer.prefixes)) == (1, 0)


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (NEW, ""),
        (replace(NEW, role=Role.DECODE), "role"),
        (replace(NEW, role=Role.PREFILL), ""),
        (replace(NEW, engine="mlx"), "no_token_ids"),
        (replace(NEW, num_blocks=None), "cache_size_unknown"),
        (replace(NEW, block_size=None), "cache_size_unknown"),
    ],
    ids=["fit", "decode", "prefill", "mlx", "no cache size", "no block size"],
)
def test_reasons_against_a_worker(worker: Worker, why: str) -> None:
    world = RouterWorld(worker)
    world.fleet.eligibility = Eligibility(ENGINES)
    assert refusal_of(worker, world.fleet) == why
