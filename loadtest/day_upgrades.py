"""`day.upgrade_failed_requests`: workers are restarted one after the other, under load, and no request fails.

    clients (streams and whole answers) ─► gateway ─► 3 simulated workers
                                                       SIGTERM; it finishes what it has; the next process

Half of the workers refuse connections while they finish, as vLLM does with `--shutdown-timeout`; the others
answer 503, their `/health` too. Nothing is drained before: that is what a rolling update of pods does.
"""

import asyncio
import itertools
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aiohttp

from loadtest.fleet import GATEWAY, SIM_READY, RunningFleet, first_match, gateway_before
from loadtest.report import Figure, publish

NUM_WORKERS, NUM_RESTARTS, NUM_CLIENTS = 3, 20, 12
ANSWERS_BETWEEN = 60
SIM = ("--shutdown-s", "30", "--decode-tokens-per-s", "100", "--prefill-tokens-per-s", "1e5")
SHUTDOWNS = ("refuse", "503")
GATEWAY_FLAGS = ("--probe-interval-s", "0.5", "--policy", "least_load", "--warm-up-s", "1")


class Worker:
    """One address, and the process that is there now."""

    def __init__(self, number: int) -> None:
        self._flags = ("--seed", str(number), "--shutdown", SHUTDOWNS[number % 2], *SIM)
        self._process, self.url = self._start("0")

    def _start(self, port: str) -> tuple["subprocess.Popen[str]", str]:
        command = [*GATEWAY, "sim", "--port", port, *self._flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return process, first_match(process, SIM_READY)[0]

    def restart(self) -> None:
        """Told to end, it finishes what it has; another one takes its place when it has."""
        self.stop()
        self._process, _ = self._start(self.url.rpartition(":")[2])

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class Load:
    """Requests without an end, each counted by what became of it."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url + "/v1/completions"
        self._session = session
        self.told: Counter[str] = Counter()
        self.is_over = False

    async def client(self, number: int) -> None:
        for turn in itertools.count():
            if self.is_over:
                return
            self.told[await self._ask(number * 50 + turn % 50, stream=(number + turn) % 2 == 0)] += 1

    async def _ask(self, seed: int, *, stream: bool) -> str:
        body = {
            "model": "m",
            "prompt": [3 + seed, 4, 5],
            "max_tokens": 20,
            "ignore_eos": True,
            "stream": stream,
        }
        try:
            async with self._session.post(self._url, json=body) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as exc:
            return f"failed: {type(exc).__name__}"
        if answer.status != 200:
            return f"failed: {answer.status} {data[:100]!r}"
        if stream and (b"[DONE]" not in data or b'"error"' in data):
            return "failed: cut"
        return "answered"

    async def until(self, num_more: int) -> None:
        wanted = self.told["answered"] + num_more
        while self.told["answered"] < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextmanager
def fleet() -> Iterator[tuple[list[Worker], RunningFleet]]:
    with ExitStack() as stack:
        workers = []
        for number in range(NUM_WORKERS):
            workers.append(Worker(number))
            stack.callback(workers[-1].stop)
        yield workers, stack.enter_context(gateway_before([w.url for w in workers], GATEWAY_FLAGS))


async def restarts(workers: list[Worker], url: str, num: int) -> Counter[str]:
    """What became of all requests, while so many restarts went by."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        load = Load(url, session)
        await _ready(session, url)
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(load.client(number))
            for worker in itertools.islice(itertools.cycle(workers), num):
                await load.until(ANSWERS_BETWEEN)
                await asyncio.to_thread(worker.restart)
            await load.until(ANSWERS_BETWEEN)
            load.is_over = True
    return load.told


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        async with session.get(url + "/ready") as answer:
            if answer.status == 200:
                return
        await asyncio.sleep(0.05)


def measure(num: int = NUM_RESTARTS) -> list[Figure]:
    with fleet() as (workers, running):
        told = asyncio.run(restarts(workers, running.gateway_url, num))
    failed = told.total() - told["answered"]
    for what, times in told.items():
        if what != "answered":
            print(f"{times} x {what}")
    return [
        Figure("day.upgrade_failed_requests", failed, "", 0, [failed]),
        Figure("day.upgrade_requests", told.total(), "", None, [told.total()]),
    ]


if __name__ == "__main__":
    publish("bench_day_upgrades", measure())
