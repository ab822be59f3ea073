"""Figures of a fleet of zero for `make bench-kube`: a gateway process, an autoscaler's stream, a cold start.

    50 requests/s ──► kvgate serve ── StreamIsActive ──► the worker starts after COLD_S ──► all are answered

zero.lost_requests     requests that got no complete answer, of those before and after the worker was ready
zero.ttft_after_start  from the time at which the worker was ready to the first token of a request that waited
zero.waiting_mb        memory that the gateway took for those that waited
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import grpc

from gateway.app import bundled_tokenizer
from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from loadtest.extent import extent
from loadtest.fleet import LISTENING, SIM_READY, first_match, rss_mb, running
from loadtest.ports import free_port
from loadtest.report import Figure

PER_S = 50.0
COLD_S = extent(2.0, 30.0)
MORE_S = extent(2.0, 10.0)
"""Requests go on for so long once the worker is ready."""
TIMEOUT_S = 120.0
MODEL = "m"
PROMPT_WORDS = 200
SIM = ("--model", MODEL, "--prefill-tokens-per-s", "200000", "--decode-tokens-per-s", "400")
ACTIVE = "/externalscaler.ExternalScaler/StreamIsActive"


@dataclass(frozen=True, slots=True)
class ColdStartRun:
    """Times of one run, on one clock: of requests, of their first tokens (None: lost), and of the worker's
    start; memory of the gateway before and at the end of the wait."""

    sent_s: Sequence[float]
    first_s: Sequence[float | None]
    ready_s: float
    before_mb: float
    waiting_mb: float

    @property
    def num_lost(self) -> int:
        return sum(first is None for first in self.first_s)

    @property
    def after_start_ms(self) -> list[float]:
        """Times from the worker's start to the first tokens of the requests that waited, in order."""
        pairs = zip(self.sent_s, self.first_s, strict=True)
        return sorted((first - self.ready_s) * 1e3 for sent, first in pairs if first and sent < self.ready_s)


def figures() -> list[Figure]:
    run = asyncio.run(cold_start())
    after = run.after_start_ms
    held_mb = run.waiting_mb - run.before_mb
    p99 = after[min(len(after) - 1, round(0.99 * len(after)))]
    return [
        Figure("zero.lost_requests", run.num_lost, "requests", 0, [len(run.sent_s)]),
        Figure("zero.waiting_requests", len(after), "requests", None, [COLD_S]),
        Figure("zero.ttft_after_start_p50_ms", round(statistics.median(after)), "ms", None, after[:3]),
        Figure("zero.ttft_after_start_p99_ms", round(p99), "ms", None, after[-3:]),
        Figure("zero.waiting_mb", round(held_mb, 1), "MB", None, [run.before_mb, run.waiting_mb]),
    ]


async def cold_start(per_s: float = PER_S, cold_s: float = COLD_S, more_s: float = MORE_S) -> ColdStartRun:
    """Send requests to a gateway without workers, and start one so long after the autoscaler hears of it."""
    port, scaler_port = free_port(), free_port()
    address = ("--worker", f"http://127.0.0.1:{port}", "--tokenizer", str(bundled_tokenizer()))
    flags = (*address, "--scaling-port", str(scaler_port), "--probe-interval-s", "0.5")
    with ExitStack() as stack:
        gateway = stack.enter_context(running("serve", "--port", "0", "--admin-port", "0", *flags))
        url, _ = first_match(gateway, LISTENING)
        before_mb = rss_mb(gateway.pid)
        async with _activity(scaler_port) as active, _clients() as http:
            assert not await anext(active)
            sending = _Sending(http, url, per_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sending.run(tasks))
                assert await anext(active)
                await asyncio.sleep(cold_s)
                waiting_mb = rss_mb(gateway.pid)
                worker = stack.enter_context(running("sim", "--port", str(port), *SIM))
                await asyncio.to_thread(first_match, worker, SIM_READY)
                ready_s = time.monotonic()
                await asyncio.sleep(more_s)
                sending.is_over = True
    return ColdStartRun(sending.sent_s, sending.first_s, ready_s, before_mb, waiting_mb)


class _Sending:
    """Streaming requests at a steady rate, whenever those before them are answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str, per_s: float) -> None:
        self.is_over = False
        self.sent_s: list[float] = []
        self.first_s: list[float | None] = []
        self._http, self._url, self._per_s = http, url, per_s

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        began_s = time.monotonic()
        while not self.is_over:
            number = len(self.sent_s)
            await asyncio.sleep(max(began_s + number / self._per_s - time.monotonic(), 0.0))
            self.sent_s.append(time.monotonic())
            self.first_s.append(None)
            tasks.create_task(self._ask(number))

    async def _ask(self, number: int) -> None:
        prompt = f"{number} " + "word " * PROMPT_WORDS
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "stream": True}
        first_s, last = None, b""
        try:
            async with self._http.post(f"{self._url}/v1/completions", json=body) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {") and first_s is None and b'"error"' not in line:
                        first_s = time.monotonic()
                    last = line if line.strip() else last
        except (aiohttp.ClientError, TimeoutError):
            return
        if answer.status == 200 and last.startswith(b"data: [DONE]"):
            self.first_s[number] = first_s


def _clients() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


@asynccontextmanager
async def _activity(port: int) -> AsyncIterator[AsyncIterator[bool]]:
    """The model's activity as an autoscaler hears it."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = channel.unary_stream(
            ACTIVE, pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )
        call = stream(pb.ScaledObjectRef(scalerMetadata={"model": MODEL}), wait_for_ready=True)
        yield (each.result async for each in call)
        call.cancel()
