"""Workers that join or restart while requests share prefixes: with warming their caches are not cold."""

import time
from typing import Any

import msgspec
import pytest

from engines.sim import Sim
from gateway.app import bundled_tokenizer
from gateway.core.worker import WorkerId
from tests.support.patience import stays, until
from tests.support.stories.joining_fleet import JoiningFleet, joining_fleet

pytestmark = pytest.mark.process

PREFIXES = [list(range(500 * n, 500 * n + 320)) for n in (1, 2, 3)]
"""Each has 20 blocks."""


class WarmingStory:
    """A joining fleet, and clients with prompts that begin alike."""

    def __init__(self, fleet: JoiningFleet) -> None:
        self.fleet = fleet
        self.num_asked = 0

    async def join(self, num: int = 1) -> list[Sim]:
        """Start workers, and wait until each was found to need no prefixes."""
        sims = [await self.fleet.join("m", block_size=16) for _ in range(num)]

        async def are_passed() -> bool:
            return await self.metric('kvgate_warming_skipped_total{reason="no_prefixes"}') == num

        await until(are_passed, "no prefix is known yet")
        return sims

    async def restart(self, sim: Sim) -> Sim:
        """Start another process at the ports of one that ended, which is known by its start time: no engine
        starts again within half a second."""
        joined_s = time.monotonic()
        await until(lambda: time.monotonic() - joined_s > 1.0, "some time between the two starts")
        await sim.stop()
        ports = {"events_port": sim.events_endpoint, "replay_port": sim.replay_endpoint, "port": sim.url}
        numbers = {name: int(place.rpartition(":")[2]) for name, place in ports.items()}
        again = await Sim(msgspec.structs.replace(sim.config, **numbers)).start()
        self.fleet.sims[self.fleet.sims.index(sim)] = again
        return again

    async def ask(self, prefix: list[int], **more: Any) -> int:
        """Ask for a prefix with a tail of its own; returns the cached tokens that the engine reports."""
        self.num_asked += 1
        tail = [2000 + (self.num_asked * 40 + n) % 1900 for n in range(40)]
        body = {"model": "m", "prompt": prefix + tail, "max_tokens": 1, **more}
        url = f"http://127.0.0.1:{self.fleet.gateway.port}/v1/completions"
        async with self.fleet.session.post(url, json=body) as answer:
            completion = await answer.json()
            assert answer.status == 200, completion
            return int(completion["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def heat(self, num: int = 180, **more: Any) -> None:
        for number in range(num):
            await self.ask(PREFIXES[number % len(PREFIXES)], **more)

    async def drain(self, *sims: Sim) -> None:
        for sim in sims:
            name = sim.url.removeprefix("http://")
            url = f"http://127.0.0.1:{self.fleet.gateway.admin_port}/admin/workers/{name}/drain"
            async with self.fleet.session.post(url) as answer:
                assert answer.status == 200

    async def metric(self, line: str) -> float:
        page = await self.fleet.admin("/metrics")
        return sum(float(each.rpartition(" ")[2]) for each in page.splitlines() if each.startswith(line))

    async def warmed(self) -> None:
        """Wait until a worker has computed all of the prefixes, whole or in pieces."""

        async def is_done() -> bool:
            return await self.metric("kvgate_warming_tokens_total") == sum(map(len, PREFIXES))

        await until(is_done, "all prefixes computed")

    def num_blocks(self, sim: Sim) -> int:
        return self.fleet.gateway.index.num_blocks(WorkerId(sim.url.removeprefix("http://")))


def story_options(**options: Any) -> dict[str, Any]:
    return {"tokenizer": [str(bundled_tokenizer())], "warming_share": 0.5, **options}


async def test_joining_worker_has_the_shared_prefixes_and_no_tails() -> None:
    async with joining_fleet(**story_options()) as fleet:
        s = WarmingStory(fleet)
        old = await s.join(2)
        await s.heat()
        num_requests = await s.metric("kvgate_requests_total")
        new = await s.fleet.join("m", block_size=16)
        await s.warmed()
        await until(lambda: s.num_blocks(new) == 60, "the prefixes in the index, and nothing else")
        assert await s.metric("kvgate_requests_total") == num_requests, "they are no clients' requests"
        await s.drain(*old)
        assert [await s.ask(prefix) for prefix in PREFIXES] == [320, 320, 320]


async def test_without_warming_it_is_sent_nothing_and_is_cold() -> None:
    async with joining_fleet(**story_options(warming_share=0.0)) as fleet:
        s = WarmingStory(fleet)
        old = [await s.fleet.join("m", block_size=16) for _ in range(2)]
        await s.heat()
        new = await s.fleet.join("m", block_size=16)
        await stays(lambda: s.num_blocks(new) == 0, 3.0, "nothing is sent")
        assert fleet.gateway.parts.warming.warmer.prefixes.num_bytes == 0, "nothing is kept"
        await s.drain(*old)
        assert [await s.ask(prefix) for prefix in PREFIXES] == [0, 0, 0]


async def test_restarted_worker_is_sent_what_it_lost() -> None:
    async with joining_fleet(**story_options()) as fleet:
        s = WarmingStory(fleet)
        old = await s.join(2)
        await s.heat()
        again = await s.restart(old[1])
        await s.warmed()
        await until(lambda: s.num_blocks(again) == 60, "the prefixes in the index, and no block of before")
        await s.drain(old[0])
        assert [await s.ask(prefix) for prefix in PREFIXES] == [320, 320, 320]
