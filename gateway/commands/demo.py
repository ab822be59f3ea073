"""Command `kvgate demo` (`make run`): a simulated fleet behind kvgate, beside its twin behind round robin."""

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.demo.player import Player, Side
from gateway.demo.processes import NUM_WORKERS, SIMULATED, gateway_with_fleet
from gateway.demo.report import report
from gateway.demo.score import WARM_UP_S, Score, summary
from gateway.demo.traffic import MODEL, traffic
from gateway.demo.view import ScoreView
from gateway.runtime.tasks import Tasks, stop_event

OTHER = "round robin"


async def demo(port: int, *, is_quiet: bool = False) -> int:
    """Run until SIGINT or SIGTERM. Raises ConfigError for a busy port or a worker that does not start."""
    _set_up_log(shows_requests=is_quiet)
    stop = stop_event()
    async with contextlib.AsyncExitStack() as stack:
        try:
            ours, urls = await stack.enter_async_context(
                gateway_with_fleet(port=port, expose_headers=True, log_requests=True, log_format="text")
            )
        except ConfigError as exc:
            if "cannot listen" in str(exc):
                raise ConfigError(f"{exc}; try: make run PORT=8080, or kvgate demo --port 8080") from exc
            raise
        url, admin_url = f"http://127.0.0.1:{ours.port}", f"http://127.0.0.1:{ours.admin_port}"
        if is_quiet:
            print(_banner(url, admin_url, urls), flush=True)
            print("One line per request follows. Ctrl-C stops everything.\n", flush=True)
            await stop.wait()
            print("stopping", flush=True)
            return 0
        twin, _ = await stack.enter_async_context(gateway_with_fleet(port=0, policy="round_robin"))
        print(_banner(url, admin_url, urls), flush=True)
        print(
            f"Beside it the same traffic goes to a fleet of the same size behind {OTHER}. Ctrl-C stops.\n"
            f"The caches are empty: requests are compared after {WARM_UP_S:g} s.\n",
            flush=True,
        )
        await _compare(stop, url, f"http://127.0.0.1:{twin.port}")
        print("stopping", flush=True)
    return 0


async def _compare(stop: asyncio.Event, our_url: str, twin_url: str) -> None:
    """Play the traffic and show both sides until `stop`, then print the summary and leave the report."""
    ours, other = (Score(name, warm_up_s=WARM_UP_S) for name in ("kvgate", OTHER))
    view = ScoreView(ours, other)
    player = Player((Side(our_url, ours), Side(twin_url, other)), time.monotonic)
    tasks = Tasks()
    tasks.start("demo traffic", player.play(traffic()))
    try:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(view.interval_s):
                    await stop.wait()
            view.show()
    finally:
        await tasks.stop()
    print(f"\n{summary(ours, other)}")
    if ours.num_answered and other.num_answered:
        path = Path(tempfile.mkdtemp(prefix="kvgate-demo-")) / "report.html"
        path.write_text(report(ours, other))
        print(f"report: {path}")


def _set_up_log(*, shows_requests: bool) -> None:
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    logging.getLogger("kvgate").setLevel("WARNING")
    for quiet in ("kvgate.roster", "kvgate.ingest"):
        logging.getLogger(quiet).setLevel("WARNING")
    logging.getLogger("kvgate.requests").setLevel("INFO" if shows_requests else "ERROR")


def _banner(url: str, admin_url: str, worker_urls: list[str]) -> str:
    body = f'{{"model":"{MODEL}","prompt":"Why?"}}'
    lines = [
        "",
        f"{NUM_WORKERS} simulated vLLM workers: {', '.join(worker_urls)}",
        SIMULATED,
        f"gateway: {url}   console, for a browser: {admin_url}",
        f"curl {url}/v1/completions -d '{body}'",
        "",
    ]
    return "\n".join(lines)
