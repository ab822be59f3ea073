"""Service of an agent, before an inventory that the test changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.agent.service import KvEvents, serve
from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.index.inventory import Inventory
from gateway.replication.agent_feed import metadata, open_channel
from gateway.replication.agent_targets import Agents
from gateway.replication.codec import SERVICE, LogRequest, decode, encode_request
from gateway.replication.journal import Journal
from gateway.replication.messages import AgentHello, AgentStatus, Update
from gateway.replication.rank_store import RankState
from tests.index.contract import ROOT, stored
from tests.support.patience import patience

EXACT = AgentStatus(StreamState.EXACT)


class Served:
    """Rank with an inventory that the test changes."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.inventory = Inventory(ROOT, 4)
        self.rank = RankState(self.inventory, Journal(self.inventory.snapshot, 5, max_bytes=max_bytes))
        self.rank.journal.status = EXACT
        self.hello = AgentHello("http://127.0.0.1:8000", 0, 4, ROOT, EXACT)
        self.status = EXACT
        self.port = self.num_described = 0

    def find(self, dp_rank: int) -> tuple[AgentHello, RankState] | None:
        self.num_described += 1
        reported = replace(self.hello, status=self.status, num_blocks=self.inventory.num_blocks)
        return None if dp_rank else (reported, self.rank)

    def store(self, num: int, blocks: int = 1) -> None:
        journal = self.rank.journal
        for _ in range(num):
            i = self.inventory.num_blocks
            ids, names = range(i * 4, (i + blocks) * 4), list(range(i + 1, i + blocks + 1))
            changes = self.inventory.apply(stored(ids, names, parent=i or None))
            journal.append(changes, Position(journal.next_seq + 1, 7, 1.0))
        self.rank.wake()

    def churn(self, num: int, blocks: int) -> None:
        """Remove and store the same blocks again: bytes for the log, and no more blocks to keep."""
        ids, names = range(10**6, 10**6 + blocks * 4), list(range(10**6, 10**6 + blocks))
        for _ in range(num):
            changes = self.inventory.apply(BlocksRemoved(names)) + self.inventory.apply(stored(ids, names))
            self.rank.journal.append(changes, Position(self.rank.journal.next_seq + 1, 7, 1.0))
        self.rank.wake()

    @asynccontextmanager
    async def read(self, agents: Agents | None = None, **cursor: int) -> AsyncIterator[Callable[[], Any]]:
        agents = agents or Agents()
        async with open_channel(f"127.0.0.1:{self.port}", agents) as channel:
            call = channel.unary_stream(f"/{SERVICE}/Subscribe")(
                encode_request(LogRequest(1, 0, **cursor)), metadata=metadata(agents)
            )

            async def next_update() -> Update:
                async with asyncio.timeout(patience(10)):
                    return decode(await call.read())

            yield next_update


@asynccontextmanager
async def served(
    served: Served | None = None, token: str | None = None, credentials: Any = None
) -> AsyncIterator[Served]:
    served = served or Served()
    server, served.port = await serve(KvEvents(served.find, token), "127.0.0.1:0", credentials)
    try:
        yield served
    finally:
        await server.stop(0)
