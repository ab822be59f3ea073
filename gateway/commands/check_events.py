"""Check of a worker's KV events: does a publisher answer, and are the events the worker's own?

The place of events that the worker does not report is a guess, where another engine of its host may publish.
Then a prompt that only this worker was sent must appear in them.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from gateway.core.engine import EventSource
from gateway.core.worker import Worker
from gateway.engine_test.followed import Followed
from gateway.http.address import Address
from gateway.ingest.endpoint_validation import place_of
from gateway.ingest.sockets import resolve

ReachEvents = Callable[[Worker, EventSource], Awaitable[str | None]]
"""Tries a worker's event publisher, and its replay where it has one; returns None if all answer, else the
fault."""
Follow = Callable[[Worker, EventSource], AbstractAsyncContextManager[Followed]]
Complete = Callable[[list[int]], Awaitable[bytes | None]]
"""Sends a prompt to the worker and waits for its answer; None where it was refused."""

FIRST_ID, LAST_ID = 100, 1_000
"""Token ids that every vocabulary has."""
NUM_BLOCKS = 2
CONNECT_S = 2.0
APPEAR_S = 3.0
"""Time for the blocks of an answered prompt to appear, which takes milliseconds."""
NOT_SHOWN = "it is not proven that the KV events at"
PORTS = '[workers."URL"] events_port and replay_port'


@dataclass(frozen=True, slots=True)
class EventsCheck:
    """Check of the events of workers. Without `follow` the owner of a guessed place is not looked for."""

    reach: ReachEvents
    follow: Follow | None = None
    rng: random.Random = field(default_factory=random.Random)

    async def obstacle(
        self, worker: Worker, source: EventSource | None, complete: Complete | None
    ) -> str | None:
        """Return why a worker's cache is not exactly known from its events; None where it is. Without
        `complete` nothing is sent."""
        if source is None:
            return "it publishes no KV events"
        if source.is_polled:
            return "its KV events can be polled, but it replays none: missed events stay unknown"
        fault = await self.reach(worker, source)
        if source.replay_endpoint is None:
            if fault and not source.is_reported:
                return f"it reports no port of KV events, and the default port does not work: {fault}"
            return fault or (
                f"it publishes KV events at {source.endpoint} but replays none: missed events stay unknown"
            )
        if fault:
            return fault
        return (
            None if source.is_reported or self.follow is None else await self._owner(worker, source, complete)
        )

    async def _owner(self, worker: Worker, source: EventSource, complete: Complete | None) -> str | None:
        """Return why the events at a guessed place are not known to be the worker's own."""
        assert self.follow is not None
        if complete is None or not worker.block_size:
            return f"{NOT_SHOWN} {source.endpoint} are its own: no prompt was sent"
        num_tokens = NUM_BLOCKS * worker.block_size + 1
        prompt = [self.rng.randrange(FIRST_ID, LAST_ID) for _ in range(num_tokens)]
        async with self.follow(worker, source) as followed:
            await followed.is_exact_within(worker, CONNECT_S)
            if await complete(prompt) is None:
                return f"{NOT_SHOWN} {source.endpoint} are its own: it rejected a prompt"
            if await followed.holds_within(worker, prompt, NUM_BLOCKS, APPEAR_S):
                return None
        return (
            f"a prompt that it computed was not in the KV events at {source.endpoint}, which are another "
            f"worker's ({PORTS} say where its own are)"
        )


def event_place(worker: Worker, source: EventSource | None) -> str | None:
    """Return where a worker's events are read, in a form that compares equal for one socket."""
    if source is None or source.is_polled:
        return None
    return place_of(resolve(source.endpoint, Address.of(worker.url).host))
