"""Feeds of workers that have an agent. gRPC itself is loaded with the first of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core.block_limits import BlockLimits
from gateway.core.event_stream import StreamState
from gateway.core.worker import Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.ingest.time_slices import TimeSlices
from gateway.replication.agent_targets import Agents
from gateway.replication.follower import refusal
from gateway.replication.messages import AgentHello
from gateway.runtime.tasks import Tasks

if TYPE_CHECKING:
    from gateway.replication.agent_feed import AgentFeed, OpenEngine


class AgentFeeds:
    """Factory of feeds for workers that have an agent."""

    def __init__(self, agents: Agents, *, index: Index, assumed: AssumedIndex, tasks: Tasks) -> None:
        self._agents = agents
        self._index = index
        self._assumed = assumed
        self._tasks = tasks
        self._time_slices = TimeSlices()

    def has(self, worker: Worker) -> bool:
        return self._agents.of(worker.url) is not None

    def open(
        self,
        worker: Worker,
        open_engine: "OpenEngine",
        on_state: Callable[[WorkerId, StreamState], None],
        start_time_s: float | None,
        limits: BlockLimits,
    ) -> "AgentFeed":
        """Start the feed of a worker that has an agent. `start_time_s` is the start of its engine process."""
        from gateway.replication.agent_feed import AgentFeed

        found = self._agents.of(worker.url)
        assert found, "checked by `has`"
        agent, is_named = found
        feed = AgentFeed(
            worker,
            agent=agent,
            agents=self._agents,
            index=self._index,
            assumed=self._assumed,
            refusal=lambda hello: refusal(hello, worker, start_time_s, is_named=is_named),
            open_engine=open_engine,
            on_state=on_state,
            time_slices=self._time_slices,
            limits=limits,
        )
        feed.start(self._tasks)
        return feed


async def reach_agent(
    agents: Agents, worker: Worker, start_time_s: float | None, *, timeout_s: float
) -> "tuple[str, AgentHello | str] | None":
    """Return the address of a worker's agent and its introduction, or why it is rejected; None where there is
    none."""
    if (found := agents.of(worker.url)) is None:
        return None
    from gateway.replication.agent_feed import reach

    agent, is_named = found
    hello = await reach(agents, agent, worker.dp_rank, timeout_s)
    if isinstance(hello, AgentHello) and (why := refusal(hello, worker, start_time_s, is_named=is_named)):
        return agent, why
    return agent, hello
