"""Demo for `make run`: three simulated workers with a gateway in front.

The workers are processes of their own, as real ones would be; the gateway runs here. Their lives are tied to
this one: they are stopped by process id, and end by themselves if it is killed, since their standard input
closes.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process

from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.runtime.tasks import stop_event

NUM_WORKERS = 3
MODEL = "demo"
SIM_FLAGS = ["--until-eof", "--model", MODEL, "--kv-blocks", "4096", "--prefill-tokens-per-s", "4000"]
START_TIMEOUT_S = 30.0


async def demo(port: int) -> int:
    """Run until SIGINT or SIGTERM. Raises ConfigError for a busy port or a worker that does not start."""
    logging.basicConfig(level="INFO", format="%(message)s")
    for quiet in ("kvgate", "kvgate.roster", "kvgate.ingest"):
        logging.getLogger(quiet).setLevel("WARNING")
    logging.getLogger("kvgate.requests").setLevel("INFO")
    stop = stop_event()
    gateway = Gateway(
        config_of(
            port=port,
            admin_port=0,
            expose_headers=True,
            log_requests=True,
            log_format="text",
            tokenizer=[str(bundled_tokenizer())],
        )
    )
    await gateway.start()
    workers: list[Process] = []
    try:
        workers = [await _spawn(seed) for seed in range(NUM_WORKERS)]
        urls = await asyncio.gather(*map(_url, workers))
        for url in urls:
            gateway.roster.add(url)
        await _joined(gateway)
        print(_banner(gateway, urls), flush=True)
        await stop.wait()
        print("stopping", flush=True)
    finally:
        await gateway.stop()
        for worker in workers:
            await _stop(worker)
    return 0


async def _spawn(seed: int) -> Process:
    command = [sys.executable, "-m", "gateway", "sim", "--port", "0", "--seed", str(seed), *SIM_FLAGS]
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


def _banner(gateway: Gateway, urls: list[str]) -> str:
    base = f"http://127.0.0.1:{gateway.port}"
    content = "How do rivers find their way from the mountains to the sea, and why do they wind? " * 24
    message = f'{{"role": "user", "content": "{content.strip()}"}}'
    body = f'{{"model": "{MODEL}", "stream": true, "messages": [{message}]}}'
    lines = [
        "",
        f"{len(urls)} simulated vLLM workers, each with its own KV cache: {', '.join(urls)}",
        f"the gateway is at {base}, its admin API and metrics at http://127.0.0.1:{gateway.admin_port}",
        "",
        "Try it twice: the second time the prompt's prefix is cached, and the first token comes sooner.",
        f"  curl -iN {base}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        "",
        "One line per request follows. Ctrl-C stops everything.",
        "",
    ]
    return "\n".join(lines)
