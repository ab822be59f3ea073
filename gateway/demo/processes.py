"""Simulated workers of the demo: processes of their own, as real ones would be.

Their lives are tied to this process: they are stopped by process id, and end by themselves if it is killed,
since their standard input closes.
"""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.demo.traffic import MODEL

NUM_WORKERS = 3
KV_BLOCKS, BLOCK_SIZE, PREFILL_TOKENS_PER_S, DECODE_TOKENS_PER_S = 4096, 16, 6000, 50
SIM_FLAGS = [
    *("--until-eof", "--model", MODEL),
    *("--kv-blocks", str(KV_BLOCKS), "--block-size", str(BLOCK_SIZE)),
    *("--prefill-tokens-per-s", str(PREFILL_TOKENS_PER_S), "--decode-tokens-per-s", str(DECODE_TOKENS_PER_S)),
]
SIMULATED = (
    f"each with a KV cache of {KV_BLOCKS * BLOCK_SIZE:,} tokens, {PREFILL_TOKENS_PER_S:,} prompt tokens/s "
    f"and {DECODE_TOKENS_PER_S} answer tokens/s"
)
"""Sizes and speeds of a worker, in words."""
START_TIMEOUT_S = 30.0


@asynccontextmanager
async def gateway_with_fleet(**options: object) -> AsyncIterator[tuple[Gateway, list[str]]]:
    """A running gateway in front of NUM_WORKERS simulated workers, with their URLs. Raises ConfigError for a
    busy port, or a worker that does not start."""
    tokenizer = [str(bundled_tokenizer())]
    gateway = Gateway(config_of(admin_port=0, tokenizer=tokenizer, **options))
    await gateway.start()
    workers: list[Process] = []
    try:
        workers = [await _spawn(seed) for seed in range(NUM_WORKERS)]
        urls = await asyncio.gather(*map(_url, workers))
        for url in urls:
            gateway.roster.add(url)
        await _joined(gateway)
        yield gateway, urls
    finally:
        await gateway.stop()
        for worker in workers:
            await _stop(worker)


async def _spawn(seed: int) -> Process:
    command = [sys.executable, "-m", "kvgate", "sim", "--port", "0", "--seed", str(seed), *SIM_FLAGS]
    # A session of its own: Ctrl-C reaches the gateway only, which then stops its workers in order.
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)


async def _url(worker: Process) -> str:
    """URL of a worker, from its first line."""
    assert worker.stdout is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await worker.stdout.readline()).decode()
            for word in line.split():
                if word.startswith("http://"):
                    return word
    raise ConfigError("a simulated worker did not start; its message is above")


async def _joined(gateway: Gateway) -> None:
    """Wait until each worker is in the fleet and its events are followed from their start."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while [member.stream for member in gateway.fleet] != [StreamState.EXACT] * NUM_WORKERS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _stop(worker: Process) -> None:
    if worker.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(5):
            await worker.wait()
    except TimeoutError:
        worker.kill()
        await worker.wait()
