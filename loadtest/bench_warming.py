"""Benchmark `make bench-warming WORKERS="URL URL"`: a worker joins while clients share prefixes, with and
without warming (`[warming] share`), in turn. The engines are real, and empty their caches before each run.

    first worker:   |── requests for shared prefixes ──────────────────────────|
    second worker:                       joins ┤── its first 50 requests ──|
    compared:       the TTFT of those 50, and of the first worker's requests in the same time

Requests come in an open loop, at their times whatever the answers take; each is one of some prefixes and a
tail of its own, in token ids. Environment:

    WORKERS   base URLs of two engines that serve one model, can empty their caches (vLLM:
              VLLM_SERVER_DEV_MODE=1) and report cached tokens (vLLM: --enable-prompt-tokens-details)
    POLICY    name of the policy                     RATE     requests per second
    ROUNDS    runs of each kind                      PREFIX   tokens of a prefix
    SECONDS   before the join                        AFTER    most seconds after it
"""

import asyncio
import json
import os
import random
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from loadtest.bench_real_workers import empty_cache, get, served_model, until_ready, workers
from loadtest.contenders import metric_sum
from loadtest.extent import extent
from loadtest.fleet import RunningFleet, gateway_before
from loadtest.report import Figure, median_of, publish

NUM_PREFIXES = 12
TAIL_TOKENS, OUTPUT_TOKENS = 48, 8
FIRST = 50
SHARE = 0.5
MIN_ID, MAX_ID = 5, 2000
"""Token ids that any vocabulary has."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Sent:
    """A request: when it was sent, the worker that answered it, and what the answer had."""

    at_s: float
    worker: str
    ttft_s: float
    cached: int
    prompt: int


@dataclass(frozen=True, slots=True)
class JoinRun:
    """The requests of a run, the time of the join, the worker that joined, and the tokens it was sent."""

    sent: Sequence[Sent]
    joined_s: float
    joined: str
    warmed_tokens: float

    @property
    def first(self) -> list[Sent]:
        """The joined worker's first requests."""
        return sorted((one for one in self.sent if one.worker == self.joined), key=lambda one: one.at_s)[
            :FIRST
        ]

    @property
    def others(self) -> list[Sent]:
        """The first worker's requests from the join to the end of those."""
        end_s = self.first[-1].at_s if self.first else float("inf")
        return [one for one in self.sent if one.worker != self.joined and self.joined_s <= one.at_s <= end_s]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile by rank, 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] if ordered else 0.0


def prompts(seed: int, num_tokens: int) -> Iterator[list[int]]:
    """Prompts without end: a prefix, some more often than others, and a tail of its own."""
    rng = random.Random(seed)
    prefixes = [[rng.randint(MIN_ID, MAX_ID) for _ in range(num_tokens)] for _ in range(NUM_PREFIXES)]
    weights = [1.0 / (1 + number) ** 0.5 for number in range(NUM_PREFIXES)]
    while True:
        (prefix,) = rng.choices(prefixes, weights)
        yield prefix + [rng.randint(MIN_ID, MAX_ID) for _ in range(TAIL_TOKENS)]


class Clients:
    """Clients of a gateway."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model
        self._tasks = set[asyncio.Task[None]]()
        self.sent: list[Sent] = []

    async def play(
        self, requests: Iterator[list[int]], rate: float, seconds: float, worker: str = ""
    ) -> None:
        """Send requests at random times for so long, or until `worker` has answered the first ones."""
        rng, end_s, at_s = random.Random(1), time.monotonic() + seconds, time.monotonic()
        while at_s < end_s and sum(one.worker == worker for one in self.sent) < FIRST:
            at_s += rng.expovariate(rate)
            await asyncio.sleep(max(at_s - time.monotonic(), 0.0))
            task = asyncio.get_running_loop().create_task(self._ask(next(requests)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _ask(self, prompt: Sequence[int]) -> None:
        body = {"model": self._model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        sent_s, ttft_s, usage = time.monotonic(), 0.0, dict[str, object]()
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    ttft_s = ttft_s or time.monotonic() - sent_s
                    usage = json.loads(line[6:]).get("usage") or usage
            worker = answer.headers["x-kvgate-worker"]
        self.sent.append(Sent(sent_s, worker, ttft_s, *tokens_of(usage)))


def tokens_of(usage: Mapping[str, object]) -> tuple[int, int]:
    """Return the cached and all tokens of a prompt."""
    details, num = usage.get("prompt_tokens_details"), usage.get("prompt_tokens")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return int(cached or 0), num if isinstance(num, int) else 0


def main() -> None:
    rounds = int(os.environ.get("ROUNDS", extent("1", "2", "4")))
    runs: dict[str, list[JoinRun]] = {"cold": [], "warmed": []}
    with workers() as urls:
        model = served_model(urls[0])
        for number in range(rounds):
            for kind in runs if number % 2 == 0 else reversed(runs):
                runs[kind].append(run(urls, model, SHARE if kind == "warmed" else 0.0, number))
                print(line(kind, runs[kind][-1]), flush=True)
    publish("bench_warming", figures(runs))


def run(urls: Sequence[str], model: str, share: float, seed: int) -> JoinRun:
    for url in urls:
        empty_cache(url)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"[warming]\nshare = {share}\n[lifecycle]\nslow_start_s = 5.0\n")
        file.flush()
        policy = os.environ.get("POLICY", "expected_ttft")
        flags = ["--config", file.name, "--policy", policy, "--expose-headers", "--probe-interval-s", "0.5"]
        with gateway_before(urls[:1], flags) as fleet:
            until_ready(fleet)
            return asyncio.run(play(fleet, urls[1], model, seed))


async def play(fleet: RunningFleet, url: str, model: str, seed: int) -> JoinRun:
    """Send requests, have the second worker join, and send on."""
    rate = float(os.environ.get("RATE", extent("40", "5")))
    num_tokens = int(os.environ.get("PREFIX", extent("320", "1600")))
    before_s, after_s = (
        float(os.environ.get(name, default))
        for name, default in (("SECONDS", extent("3", "25")), ("AFTER", extent("5", "60")))
    )
    requests = prompts(seed, num_tokens)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = Clients(session, fleet.gateway_url, model)
        await clients.play(requests, rate, before_s)
        joined_s = time.monotonic()
        async with session.post(f"{fleet.admin_url}/admin/workers", json={"url": url}) as answer:
            answer.raise_for_status()
        joined = url.partition("//")[2]
        await clients.play(requests, rate, after_s, joined)
        await clients.ended()
    page = await asyncio.to_thread(get, f"{fleet.admin_url}/metrics")
    return JoinRun(clients.sent, joined_s, joined, metric_sum(page, "kvgate_warming_tokens_total"))


def measured(run: JoinRun) -> dict[str, tuple[str, float]]:
    """Return the figures of a run with their units."""
    first, others = run.first, run.others
    cached = sum(one.cached for one in first) / (sum(one.prompt for one in first) or 1)
    return {
        "joined_requests": ("requests", float(len(first))),
        "joined_ttft_p50": ("ms", percentile([one.ttft_s * 1000 for one in first], 50)),
        "joined_ttft_p90": ("ms", percentile([one.ttft_s * 1000 for one in first], 90)),
        "joined_hit_rate": ("share", cached),
        "others_ttft_p50": ("ms", percentile([one.ttft_s * 1000 for one in others], 50)),
        "others_ttft_p90": ("ms", percentile([one.ttft_s * 1000 for one in others], 90)),
        "seconds_to_first_50": ("s", first[-1].at_s - run.joined_s if first else 0.0),
        "warmed_tokens": ("tokens", run.warmed_tokens),
    }


def line(kind: str, run: JoinRun) -> str:
    found = ", ".join(f"{name} {value:,.4g} {unit}" for name, (unit, value) in measured(run).items())
    return f"{kind}: {found}"


def figures(runs: Mapping[str, Sequence[JoinRun]]) -> list[Figure]:
    """Medians of the rounds of each kind."""
    found = []
    for kind, some in runs.items():
        rounds = [measured(one) for one in some]
        for name, (unit, _) in rounds[0].items():
            found.append(median_of(f"{kind}.{name}", unit, None, [each[name][1] for each in rounds]))
    return found


if __name__ == "__main__":
    main()
