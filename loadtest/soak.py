"""Soak test `make soak`: a simulated fleet with faults, under steady traffic for MINUTES (10).

Clients hold growing conversations, streamed and not, and some of them leave in mid-response. Of the workers'
event batches 1 % are lost, 1 % late, 1 % repeated, and once a minute a worker restarts. Each minute ends in a
rest: faults stop, the streams heal, and the gateway's blocks are compared with those of each engine. A block
too many is a wrong credit. Caches of workers, gateway and tokenizer fill in the first part (warm-up); from
then on memory must stay flat.
"""

import asyncio
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvloop

from gateway.app import bundled_tokenizer
from loadtest.fleet import RunningFleet, rss_mb, simulated_fleet
from loadtest.report import Figure, publish
from loadtest.workloads.conversations import Conversations

NUM_CLIENTS = 24
WARM_UP_SHARE = 0.4
SAMPLE_S = 1.0
SIM_FLAGS = ["--kv-blocks", "2048", "--prefill-tokens-per-s", "50000", "--decode-tokens-per-s", "400"]
LEAVES_EARLY = 0.02

ONE_PERCENT = {"probability": 0.01}
FAULTS = {"lose": ONE_PERCENT, "delay": ONE_PERCENT, "delay_s": 0.5, "duplicate": ONE_PERCENT}
ROUND_S = 60.0
RESTART_AFTER_S = 20.0
DOWN_S = 1.0
RESTART_S = 5.0
"""Seconds after a restart in which failures count as caused by it."""
HEAL_S = 30.0
MIN_FLAT_MINUTES = 5.0
"""Minutes below which the caches are still filling: memory is reported, not judged."""


@dataclass(slots=True)
class SoakTally:
    num_answered: int = 0
    num_left: int = 0
    num_cut: int = 0
    failures: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


class Soak:
    """Traffic of the soak test. `may_run` is clear while clients rest, `is_quiet` set while none has a
    request."""

    def __init__(self, session: aiohttp.ClientSession, fleet: RunningFleet, seconds: float) -> None:
        self.session = session
        self.fleet = fleet
        self.deadline = time.monotonic() + seconds
        self.tally = SoakTally()
        self.may_run = asyncio.Event()
        self.is_quiet = asyncio.Event()
        self.num_running = 0
        self.restarted_s = -RESTART_S

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    async def run(self) -> SoakTally:
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client(seed)) for seed in range(NUM_CLIENTS)]
            sampler = group.create_task(self._sample())
            victim = 0
            while self.left_s > 0:
                await self._round(victim % len(self.fleet.worker_urls))
                victim += 1
            for task in (*clients, sampler):
                task.cancel()
        return self.tally

    async def _round(self, victim: int) -> None:
        """Run faults and a restart, then a rest in which the blocks are compared."""
        for url in self.fleet.worker_urls:
            await self._set_faults(url, FAULTS)
        self.may_run.set()
        end = time.monotonic() + min(ROUND_S, self.left_s)
        await asyncio.sleep(min(RESTART_AFTER_S, end - time.monotonic()))
        self.restarted_s = time.monotonic()
        await self._set_faults(self.fleet.worker_urls[victim], FAULTS | {"restart_down_s": DOWN_S})
        await asyncio.sleep(max(end - time.monotonic(), DOWN_S + RESTART_S))
        self.may_run.clear()
        await self.is_quiet.wait()
        for url in self.fleet.worker_urls:
            await self._set_faults(url, {})
        await self._compare()

    async def _compare(self) -> None:
        """Wait until all blocks are right, or HEAL_S; count the others."""
        until, seed = time.monotonic() + HEAL_S, 0
        while True:
            for url in self.fleet.worker_urls:  # a batch that was lost last is missed when the next one comes
                seed += 1
                body = {"model": "m", "prompt": [7, seed % 50, *range(40)], "max_tokens": 1}
                await self._post(f"{url}/v1/completions", body)
            await asyncio.sleep(0.5)
            pairs = [(await self._known(url), await self._held(url)) for url in self.fleet.worker_urls]
            wrong = sum(len(known - held) for known, held in pairs)
            missing = sum(len(held - known) for known, held in pairs)
            if not wrong + missing or time.monotonic() > until:
                break
        self.tally.wrong.append(wrong)
        self.tally.missing.append(missing)
        print(
            f"{sum(len(held) for _, held in pairs)} blocks held, {wrong} wrong, {missing} missing", flush=True
        )

    async def _known(self, url: str) -> set[int]:
        worker = url.removeprefix("http://")
        async with self.session.get(f"{self.fleet.admin_url}/admin/index/{worker}/blocks") as answer:
            answer.raise_for_status()
            return set(map(int, (await answer.text()).split()))

    async def _held(self, url: str) -> set[int]:
        async with self.session.get(f"{url}/sim/cache") as answer:
            body = await answer.json()
        return {int(block) for _, block, _ in body["0"]}

    async def _set_faults(self, url: str, plan: dict[str, Any]) -> None:
        await self._post(f"{url}/sim/faults", plan)

    async def _post(self, url: str, body: dict[str, Any]) -> None:
        async with self.session.post(url, json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"{url} answered {answer.status}: {await answer.text()}")

    async def _sample(self) -> None:
        while True:
            self.tally.rss_mb.append(rss_mb(self.fleet.gateway_pid))
            await asyncio.sleep(SAMPLE_S)

    async def _client(self, seed: int) -> None:
        rng = random.Random(seed)
        source = Conversations("m", seed)
        while True:
            for body in source.turns(rng.randint(2, 12)):
                await self.may_run.wait()
                self._began()
                await self._one(body | {"stream": rng.random() < 0.5}, rng.random() < LEAVES_EARLY)
                self._ended()

    def _began(self) -> None:
        self.num_running += 1
        self.is_quiet.clear()

    def _ended(self) -> None:
        self.num_running -= 1
        if not self.num_running:
            self.is_quiet.set()

    async def _one(self, body: dict[str, Any], leaves: bool) -> None:
        url, tally = f"{self.fleet.gateway_url}/v1/chat/completions", self.tally
        try:
            async with self.session.post(url, json=body) as answer:
                if leaves:
                    tally.num_left += 1
                    answer.close()
                    return
                data = await answer.read()
                if answer.status != 200 or b'"error"' in data:
                    self._failed(f"{answer.status}: {data[:200]!r}")
                tally.num_answered += 1
        except aiohttp.ClientError as exc:
            self._failed(repr(exc))

    def _failed(self, how: str) -> None:
        if time.monotonic() - self.restarted_s < RESTART_S:
            self.tally.num_cut += 1
        else:
            self.tally.failures.append(how)


def main() -> int:
    minutes = float(os.environ.get("MINUTES", "10"))
    tokenizer = ["--tokenizer", str(bundled_tokenizer())]
    with (
        simulated_fleet(3, SIM_FLAGS, tokenizer) as fleet,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        tally = runner.run(soak(fleet, minutes * 60))
    found = figures(tally, minutes)
    publish("soak", found)
    return 1 if any(figure.verdict == "MISSED" for figure in found) else 0


async def soak(fleet: RunningFleet, seconds: float) -> SoakTally:
    async with aiohttp.ClientSession() as session:
        return await Soak(session, fleet, seconds).run()


def figures(tally: SoakTally, minutes: float) -> list[Figure]:
    warm = tally.rss_mb[int(len(tally.rss_mb) * WARM_UP_SHARE) :]
    part = max(len(warm) // 6, 1)
    before, after = statistics.median(warm[:part]), statistics.median(warm[-part:])
    growth = round((after - before) / before * 100, 2)
    most_growth = 5 if minutes >= MIN_FLAT_MINUTES else None
    print(f"{tally.num_answered} answered, {tally.num_left} left early, {len(tally.failures)} failed")
    for failure in tally.failures[:10]:
        print("  failed:", failure)
    return [
        Figure("soak.wrong_credits", sum(tally.wrong), "blocks", 0, tally.wrong),
        Figure("soak.missing_credits", sum(tally.missing), "blocks", 0, tally.missing),
        Figure("soak.rss_growth_percent", growth, "%", most_growth, [growth]),
        Figure("soak.rss_mb", round(after, 1), "MB", None, [round(before, 1), round(after, 1)]),
        Figure("soak.failed_requests", len(tally.failures), "requests", 0, [len(tally.failures)]),
        Figure("soak.cut_by_restarts", tally.num_cut, "requests", None, [tally.num_cut]),
        Figure("soak.requests_per_s", round(tally.num_answered / minutes / 60, 1), "1/s", None, []),
    ]


if __name__ == "__main__":
    sys.exit(main())
