"""Figure `day.upgrade_failed_requests`: rolling restarts of the workers, while clients send without pause.

Simulated workers of which one at a time gets SIGTERM: it accepts no more, finishes its requests, ends, and
another process takes its port. Clients request streams and plain responses, on connections that they keep; a
request failed where its response is not 200 and complete. The gateway gets no notification. A second run has
two gateway processes, and workers that answer 503 while they end.
"""

import asyncio
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import aiohttp
import uvloop

from gateway.app import bundled_tokenizer
from loadtest.extent import extent
from loadtest.fleet import GATEWAY, SIM_READY, RunningFleet, first_match, gateway_before
from loadtest.ports import free_port
from loadtest.report import Figure, publish

NUM_WORKERS = 3
NUM_RESTARTS = extent(2, 20)
NUM_CLIENTS = 16
DRAIN_S = 20.0
UP_AGAIN_S = 20.0
BETWEEN_S = 0.3
"""Seconds from one worker's return to the next one's end."""
WORKER = (
    *("--kv-blocks", "20000", "--prefill-tokens-per-s", "50000", "--decode-tokens-per-s", "200"),
    *("--shutdown-s", f"{DRAIN_S:g}"),
)
STAY_S = 0.02
"""Seconds that clients pause at most: connections to workers rest too, and are closed there."""


@dataclass(slots=True)
class UpgradeTally:
    """Outcomes of the clients' requests."""

    num_asked: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    is_over: bool = False


class Rolling:
    """Worker with a process that comes and goes on one port."""

    def __init__(self, seed: int, shutdown: str) -> None:
        self._port = free_port()
        self._flags = ("--seed", str(seed), "--shutdown", shutdown)
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        flags = ("--port", str(self._port), *self._flags, *WORKER)
        self._process = subprocess.Popen(
            [*GATEWAY, "sim", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.url = first_match(self._process, SIM_READY)[0]

    def end(self) -> None:
        """End the process. Raises TimeoutExpired where it does not end by itself."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DRAIN_S + 10)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def rolling(num: int, shutdown: str) -> Iterator[Sequence[Rolling]]:
    workers = [Rolling(seed, shutdown) for seed in range(num)]
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        yield workers


async def client(session: aiohttp.ClientSession, url: str, number: int, tally: UpgradeTally) -> None:
    """Client with streams as every second request is a stream, of another prompt each."""
    turn = 0
    while not tally.is_over:
        turn += 1
        is_stream = (number + turn) % 2 == 0
        body = {
            "model": "m",
            "prompt": [(number * 7919 + turn * 31 + i) % 1000 + 1 for i in range(200)],
            "max_tokens": 4 + turn % 40,
            "ignore_eos": True,
            "stream": is_stream,
        }
        tally.num_asked += 1
        try:
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                data = await answer.read()
            is_whole = data.endswith(b"data: [DONE]\n\n") if is_stream else bool(json.loads(data))
            if answer.status != 200:
                tally.failed[f"{answer.status} {data[:200].decode()}"] += 1
            elif b'"error"' in data or not is_whole:
                tally.failed[f"incomplete: {data[-200:].decode()}"] += 1
        except (aiohttp.ClientError, ValueError) as exc:
            tally.failed[repr(exc)] += 1
        await asyncio.sleep(STAY_S * (turn % 4))


async def is_up(session: aiohttp.ClientSession, fleet: RunningFleet, url: str) -> bool:
    async with session.get(f"{fleet.admin_url}/admin/workers") as answer:
        endpoints = (await answer.json())["endpoints"]
    return any(e["url"] == url and e["workers"] and all(w["is_up"] for w in e["workers"]) for e in endpoints)


async def until_up(session: aiohttp.ClientSession, fleet: RunningFleet, url: str) -> None:
    async with asyncio.timeout(UP_AGAIN_S):
        while not await is_up(session, fleet, url):  # noqa: ASYNC110  state of another process
            await asyncio.sleep(0.05)


async def restarts(fleet: RunningFleet, workers: Sequence[Rolling], num: int) -> UpgradeTally:
    tally = UpgradeTally()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for worker in workers:
            await until_up(session, fleet, worker.url)
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(client(session, fleet.gateway_url, number, tally))
            await asyncio.sleep(1.0)
            for number in range(num):
                worker = workers[number % len(workers)]
                await asyncio.to_thread(worker.end)
                await asyncio.to_thread(worker.start)
                await until_up(session, fleet, worker.url)
                await asyncio.sleep(BETWEEN_S)
            tally.is_over = True
    return tally


def run(num_restarts: int, *flags: str, shutdown: str = "refuse") -> UpgradeTally:
    """Run the restarts; `shutdown` is the workers' reply to requests while they end (`engines/sim`)."""
    gateway = ("--tokenizer", str(bundled_tokenizer()), "--probe-interval-s", "0.5", *flags)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        workers = stack.enter_context(rolling(NUM_WORKERS, shutdown))
        fleet = stack.enter_context(gateway_before([worker.url for worker in workers], gateway))
        return runner.run(restarts(fleet, workers, num_restarts))


def measure() -> list[Figure]:
    tallies = [run(NUM_RESTARTS), run(NUM_RESTARTS // 2, "--processes", "2", shutdown="503")]
    for tally in tallies:
        print(f"{tally.num_asked} requests, {sum(tally.failed.values())} failed")
        for what, num in tally.failed.most_common(5):
            print(f"  {num} x {what}")
    failed = [float(sum(tally.failed.values())) for tally in tallies]
    return [
        Figure("day.upgrade_failed_requests", sum(failed), "requests", 0.0, failed),
        Figure("day.upgrade_requests", sum(t.num_asked for t in tallies), "requests", None, ()),
    ]


if __name__ == "__main__":
    publish("day_upgrades", measure())
