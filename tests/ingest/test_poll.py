"""Worker with events to poll, and the feed that polls it."""

import json
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
from aiohttp import web

from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.ingest import poll as module
from gateway.ingest.chunks import PORTION_BLOCKS
from gateway.ingest.poll import PollFeed
from gateway.ingest.subscription import Subscription
from gateway.runtime.tasks import Tasks
from tests.support.fakes import FakeEngine, Known, serve, session, url_of
from tests.support.patience import until

pytestmark = pytest.mark.process

W = WorkerId("w:1")


class PollWorld:
    """Worker that hands out its `events` once; `status` and `bodies` replace its answers."""

    feed: PollFeed

    def __init__(self) -> None:
        self.known = Known("w:1")
        self.states: list[StreamState] = []
        self.events: list[tuple[int, list[int]]] = []
        self.status = 200
        self.bodies: list[bytes] = []
        self.asked: list[str | None] = []
        self.seq = count()
        clock = count(1)
        self.clock: Callable[[], float] = lambda: float(next(clock))

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("authorization"))
        if self.status != 200:
            return web.Response(status=self.status)
        if self.bodies:
            return web.Response(body=self.bodies.pop())
        events, self.events = self.events, []
        return web.Response(body=json.dumps(events))

    def happen(self, *blocks: int, seq: int | None = None) -> None:
        self.events.append((next(self.seq) if seq is None else seq, list(blocks)))

    @property
    def num_blocks(self) -> int:
        return self.known.num_blocks("w:1")

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true)


@pytest.fixture
async def world() -> AsyncIterator[PollWorld]:
    world = PollWorld()
    server = await serve(web.post("/events", world.answer))
    tasks = Tasks()
    async with session() as open_session:
        subscription = Subscription(
            W,
            engine=FakeEngine(),
            index=world.known.index,
            assumed=world.known.assumed,
            can_replay=False,
            on_state=lambda worker, state: world.states.append(state),
        )
        world.feed = PollFeed(
            subscription,
            session=open_session,
            url=url_of(server),
            path="/events",
            block_size=4,
            headers={"authorization": "Bearer k"},
            tasks=tasks,
            poll_s=0.005,
            retry_s=0.005,
            clock=world.clock,
        )
        yield world
        world.feed.stop()
        await tasks.stop()
    await server.close()


@pytest.fixture
async def feed(world: PollWorld) -> PollFeed:
    return world.feed


async def test_events_since_the_start_make_the_worker_exact(world: PollWorld, feed: PollFeed) -> None:
    world.happen(1, 2)
    world.happen(3)
    feed.start()
    await world.until(lambda: world.num_blocks == 3)
    world.happen(4)
    await world.until(lambda: world.num_blocks == 4)
    assert world.states == [StreamState.BLIND, StreamState.EXACT]
    assert (feed.is_connected, set(world.asked)) == (True, {"Bearer k"})
    assert feed.endpoint.endswith("/events") and "connected=True" in repr(feed)


async def test_events_consumed_by_another_reader_are_a_gap(world: PollWorld, feed: PollFeed) -> None:
    world.happen(1, 2)
    feed.start()
    await world.until(lambda: world.num_blocks == 2)
    world.happen(9, seq=7)
    await world.until(lambda: world.num_blocks == 1)
    assert world.states[-1] is StreamState.BLIND


async def test_a_restarted_engine_is_reset_first(world: PollWorld, feed: PollFeed) -> None:
    world.happen(1, 2)
    world.happen(3)
    feed.start()
    await world.until(lambda: world.num_blocks == 3)
    world.happen(8, seq=0)
    await world.until(lambda: world.num_blocks == 1)
    await world.until(lambda: world.states[-1] is StreamState.EXACT)


async def test_a_failure_is_logged_once_and_its_events_wait(
    world: PollWorld, feed: PollFeed, caplog: pytest.LogCaptureFixture
) -> None:
    world.happen(1)
    world.status = 503
    feed.start()
    await world.until(lambda: len(world.asked) > 3)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker w:1: polling KV events at {feed.endpoint} failed: answered 503"
    ]
    assert not feed.is_connected
    world.status = 200
    await world.until(lambda: world.num_blocks == 1)
    assert world.states[-1] is StreamState.EXACT


async def test_an_unreadable_answer_makes_the_stream_blind(world: PollWorld, feed: PollFeed) -> None:
    world.happen(1)
    feed.start()
    await world.until(lambda: world.num_blocks == 1)
    world.bodies.append(b"<html>")
    await world.until(lambda: world.states[-1] is StreamState.BLIND)
    world.happen(2)
    await world.until(lambda: world.num_blocks == 2)


async def test_an_endless_answer_is_cut_off(
    world: PollWorld, feed: PollFeed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100)
    world.bodies.append(b" " * 101)
    feed.start()
    await world.until(lambda: caplog.records)
    assert "the answer is over 100 bytes" in caplog.text


async def test_a_large_answer_is_applied_in_portions(world: PollWorld, feed: PollFeed) -> None:
    many = 3 * PORTION_BLOCKS
    world.happen(*range(1, many + 1))
    world.happen(many + 1)
    feed.start()
    await world.until(lambda: world.num_blocks == many + 1)
    assert world.states[-1] is StreamState.EXACT
