"""Workers that have an agent, and what is reached there."""

from dataclasses import replace

import pytest

from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.replication.agent_feeds import AgentFeeds, reach_agent
from gateway.replication.agent_targets import Agents
from gateway.runtime.tasks import Tasks
from tests.support.fakes import worker

CLOSED = "127.0.0.1:1"
WORKER = replace(worker("http://w:1"), url="http://w:1")


@pytest.mark.parametrize(("named", "has"), [({}, False), ({"http://w:1": CLOSED}, True)])
def test_a_worker_has_the_agent_that_is_named_for_it(named: dict[str, str], has: bool) -> None:
    feeds = AgentFeeds(Agents(named=named), index=MemoryIndex(), assumed=AssumedIndex(), tasks=Tasks())
    assert feeds.has(WORKER) is has


async def test_what_is_reached_at_an_agent_is_said() -> None:
    assert await reach_agent(Agents(), WORKER, None, timeout_s=5) is None
    found = await reach_agent(Agents(named={WORKER.url: CLOSED}), WORKER, None, timeout_s=5)
    assert found is not None and found[0] == CLOSED and "unavailable" in str(found[1])
