"""Workers with metrics that have no block size, or a stale one: simulated engines behind a gateway."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

import engines.sim.metrics
from engines.sim import SimConfig
from engines.sim.rank import SimRank
from gateway.core.event_stream import StreamState
from tests.support.stories.worker_story import SIM, WorkerStory, worker_story

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

METRICS = engines.sim.metrics._info
PROMPT = list(range(100, 228))


def _reporting(size: int | None) -> Any:
    """Return what a simulated engine reports of its cache, with another block size or none."""

    def info(config: SimConfig, ranks: Sequence[SimRank]) -> Iterator[str]:
        for line in METRICS(config, ranks):
            if size is not None:
                yield line.replace(f'block_size="{config.block_size}"', f'block_size="{size}"')

    return info


def _is_followed(s: WorkerStory) -> bool:
    (endpoint,) = s.gateway.roster
    return len(endpoint.feeds) == 1 and all(feed.is_connected for feed, _ in endpoint.feeds.values())


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("reported", [None, 64, 8])
async def test_the_events_of_a_worker_show_its_block_size(
    reported: int | None, replay: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines.sim.metrics, "_info", _reporting(reported))
    sim = msgspec.structs.replace(SIM, replay=replay, block_size=16)
    async with worker_story(1, sim) as s:
        (member,) = s.gateway.fleet
        await s.until(lambda: member.stream is not None)
        await s.until(partial(_is_followed, s))
        assert await s.ask(1, prompt=PROMPT)
        name = member.worker.id
        await s.until(lambda: s.gateway.index.num_blocks(name) >= 8)
        assert member.worker.block_size == 16
        assert await s.ask(1, prompt=PROMPT)
        (explained,) = (await s.admin("/admin/verify"))["workers"]
        assert explained["exact_share"] == 1.0
        view = await s.worker(s.sims[0])
        assert (view["block_size"], view["stream"]) == (16, "exact")
    differs = [line for line in caplog.messages if "its KV events have blocks of 16 tokens" in line]
    assert len(differs) == (reported is not None)


async def test_a_configured_block_size_overrides_events_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """Events do not fit a wrong size, and the stream says so."""
    sim = msgspec.structs.replace(SIM, block_size=16)
    async with worker_story(1, sim) as s:
        url = s.sims[0].url
        s.gateway.parts.workers.declared.block_sizes[url] = 32
        s.gateway.roster.drop(url)
        s.gateway.roster.add(url)
        await s.until(lambda: len(s.gateway.fleet) == 1)
        (member,) = s.gateway.fleet
        assert member.worker.block_size == 32
        await s.until(partial(_is_followed, s))
        assert await s.ask(1, prompt=PROMPT)
        await s.until(lambda: member.stream is StreamState.BLIND)
        assert s.gateway.index.num_blocks(member.worker.id) == 0
    assert any("has blocks of 16 tokens, not of 32" in line for line in caplog.messages)
