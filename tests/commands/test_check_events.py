"""KV events of a worker that `kvgate check` tries: reached, and the worker's own."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.commands.check_events import NUM_BLOCKS, EventsCheck, event_place
from gateway.core.blocks import root_hash, tokens_of
from gateway.core.engine import EventSource
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import Worker
from gateway.engine_test.followed import Followed
from gateway.index.memory import MemoryIndex
from tests.support.fakes import BLOCK_SIZE, worker

W = worker("127.0.0.1:9", block_size=BLOCK_SIZE)
GUESSED = EventSource(0, "tcp://*:5557", "tcp://*:6557", is_reported=False)


class CheckEventsWorld:
    """Events of the worker's place, which show the prompts that it is sent if they are `its_own`."""

    def __init__(self, *, its_own: bool = True, fault: str | None = None) -> None:
        self.its_own, self.fault = its_own, fault
        self.prompts: list[list[int]] = []
        self.index = MemoryIndex()
        self.index.add_worker(W.id, root_hash("root"), BLOCK_SIZE)
        self.check = EventsCheck(self._reach, self._follow, random.Random(1))

    async def _reach(self, worker: Worker, source: EventSource) -> str | None:
        return self.fault

    @asynccontextmanager
    async def _follow(self, worker: Worker, source: EventSource) -> AsyncIterator[Followed]:
        yield Followed(self.index, {W.id: StreamState.EXACT})

    async def complete(self, prompt: list[int]) -> bytes | None:
        self.prompts.append(prompt)
        if self.its_own:
            tokens = tokens_of(prompt[: NUM_BLOCKS * BLOCK_SIZE])
            self.index.apply(W.id, BlocksStored(range(1, NUM_BLOCKS + 1), None, tokens, BLOCK_SIZE))
        return b"{}"


@pytest.mark.parametrize(
    ("source", "fault", "words"),
    [
        (None, None, "it publishes no KV events"),
        (EventSource(0, "/events"), None, "can be polled, but it replays none"),
        (EventSource(0, "tcp://*:5557"), None, "it publishes KV events at tcp://*:5557 but replays none"),
        (
            EventSource(0, "tcp://*:5557", is_reported=False),
            "no publisher answers",
            "it reports no port of KV events, and the default port does not work: no publisher answers",
        ),
        (EventSource(0, "tcp://*:5557", is_reported=False), None, "tcp://*:5557 but replays none"),
        (GUESSED, "no replay answers", "no replay answers"),
    ],
)
async def test_events_that_are_not_there_are_an_obstacle(
    source: EventSource | None, fault: str | None, words: str
) -> None:
    world = CheckEventsWorld(fault=fault)
    assert words in (await world.check.obstacle(W, source, world.complete) or "")
    assert world.prompts == []


async def test_a_place_that_the_worker_reports_is_believed() -> None:
    world = CheckEventsWorld(its_own=False)
    source = EventSource(0, "tcp://*:5557", "tcp://*:6557")
    assert await world.check.obstacle(W, source, world.complete) is None
    assert world.prompts == []


async def test_events_at_a_guessed_place_must_show_a_prompt_of_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.commands.check_events.APPEAR_S", 0.05)
    own, others = CheckEventsWorld(), CheckEventsWorld(its_own=False)
    assert await own.check.obstacle(W, GUESSED, own.complete) is None
    assert "was not in the KV events at tcp://*:5557" in (
        await others.check.obstacle(W, GUESSED, others.complete) or ""
    )
    assert [len(prompt) for prompt in own.prompts] == [NUM_BLOCKS * BLOCK_SIZE + 1]
    await own.check.obstacle(W, GUESSED, own.complete)
    assert own.prompts[0] != own.prompts[1], "a prompt that was cached before would not appear"


async def test_an_owner_that_cannot_be_shown_is_an_obstacle() -> None:
    async def refuse(prompt: list[int]) -> bytes | None:
        return None

    check = CheckEventsWorld().check
    assert "no prompt was sent" in (await check.obstacle(W, GUESSED, None) or "")
    assert "it rejected a prompt" in (await check.obstacle(W, GUESSED, refuse) or "")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (EventSource(0, "tcp://*:5557"), "tcp://127.0.0.1:5557"),
        (EventSource(0, "tcp://localhost:5557"), "tcp://127.0.0.1:5557"),
        (EventSource(0, "ipc:///run/kv"), "ipc:///run/kv"),
        (EventSource(0, "/events"), None),
        (None, None),
    ],
)
def test_the_place_of_events_compares_equal_for_one_socket(
    source: EventSource | None, place: str | None
) -> None:
    assert event_place(W, source) == place
