"""Benchmark `make bench-console`: the cost of a console that is open, and how soon a browser shows it.

request_overhead_ratio   the gateway's CPU per request with one console open, over that with none
page_kb_gz               all files of the console, compressed
first_paint_ms           in Chromium, on loopback (First Contentful Paint)
update_ms                the main thread's time for an update of 1,000 workers
rss_mb                   the estimate of one cache for all, at 1,000,000 blocks
bound_error_points       its error on the recorded conversations, of three sizes the largest
"""

import http.client
import json
import lzma
import os
import sys
import threading
import tracemalloc
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from gateway.admin.console.assets import assets
from gateway.admin.console.pooled_bound import SampledCache
from loadtest.extent import extent
from loadtest.fleet import RunningFleet, simulated_fleet
from loadtest.report import Figure, best_of, median_of, publish
from loadtest.workloads.traces import CONVERSATION, check_traces

ROOT = Path(__file__).parents[1]
CHROMIUM = ROOT / ".cache/console/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
NUM_ROUNDS = extent(1, 5)
NUM_REQUESTS = extent(50, 1_500)
NUM_WORKERS = extent(20, 1_000)
UPDATES_S = extent(1, 6)
NUM_BLOCKS = 1_000_000
SHARES = (0.01, 0.05, 0.2)
"""Sizes of the cache, as shares of the trace's blocks."""
SPLIT = 4
"""Blocks of 128 tokens made of each block of the trace."""
SIM = ("--model", "m", "--decode-tokens-per-s", "100000", "--prefill-tokens-per-s", "10000000")
Touch = Callable[[Sequence[int]], float]
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main() -> None:
    check_traces(CONVERSATION)
    if not CHROMIUM.exists():
        sys.exit(f"{CHROMIUM} is missing: run by `make bench-console`, which installs it")
    figures = [page_figure(), rss_figure(), bound_figure()]
    with simulated_fleet(2, SIM, ()) as fleet:
        figures += [overhead_figure(fleet), *browser_figures(fleet)]
    publish("bench_console", figures)


def page_figure() -> Figure:
    return best_of(
        "console.page_kb_gz", "kB", 80, [sum(len(each.packed) for each in assets().values()) / 1000]
    )


# one cache for all -------------------------------------------------------------------------------


def rss_figure() -> Figure:
    tracemalloc.start()
    cache = SampledCache(NUM_BLOCKS)
    for start in range(0, extent(NUM_BLOCKS // 10, 2 * NUM_BLOCKS), 10_000):
        cache.touch([hashed(number) for number in range(start, start + 10_000)])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return best_of("console.rss_mb", "MB", 5, [taken / 1e6])


def bound_figure() -> Figure:
    with lzma.open(CONVERSATION, "rt") as file:
        prompts = [split(json.loads(line)["hash_ids"]) for line in file]
    num_blocks = len({block for blocks in prompts for block in blocks})
    sizes = [max(1, round(share * num_blocks)) for share in SHARES]
    errors = [
        100 * abs(hit_rate(SampledCache(size).touch, prompts) - hit_rate(exact(size), prompts))
        for size in sizes
    ]
    return Figure(
        "console.bound_error_points", round(max(errors), 3), "points", 1, [round(e, 3) for e in errors]
    )


def hashed(number: int) -> int:
    return xxhash.xxh64_intdigest(number.to_bytes(8, "little"))


def split(blocks: Sequence[int]) -> list[int]:
    """Hashes of the smaller blocks that make up those of the trace."""
    return [hashed(SPLIT * block + part) for block in blocks for part in range(SPLIT)]


def exact(capacity: int) -> Touch:
    """Return the `touch` of an LRU of all blocks."""
    entries: OrderedDict[int, None] = OrderedDict()

    def touch(blocks: Sequence[int]) -> float:
        num_missed = sum(block not in entries for block in blocks)
        for block in reversed(blocks):
            entries[block] = None
            entries.move_to_end(block)
        while len(entries) > capacity:
            entries.popitem(last=False)
        return num_missed

    return touch


def hit_rate(touch: Touch, prompts: Sequence[Sequence[int]]) -> float:
    return 1 - sum(map(touch, prompts)) / max(1, sum(map(len, prompts)))


# CPU per request ---------------------------------------------------------------------------------


def overhead_figure(fleet: RunningFleet) -> Figure:
    cpu_of_requests(fleet)  # warm
    ratios = []
    for _ in range(NUM_ROUNDS):
        alone = cpu_of_requests(fleet)
        with console_open(fleet):
            ratios.append(cpu_of_requests(fleet) / alone)
    return median_of("console.request_overhead_ratio", "ratio", 1.01, ratios)


def cpu_of_requests(fleet: RunningFleet) -> float:
    """CPU seconds of the gateway for the requests."""
    before = cpu_s(fleet.gateway_pid)
    connection = http.client.HTTPConnection(fleet.gateway_url.removeprefix("http://"))
    body = json.dumps({"model": "m", "prompt": list(range(64)), "max_tokens": 1})
    for _ in range(NUM_REQUESTS):
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()
    connection.close()
    return cpu_s(fleet.gateway_pid) - before


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def console_open(fleet: RunningFleet) -> Iterator[None]:
    """Read the events of the page Fleet, as a browser does."""
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            with _direct.open(fleet.admin_url + "/admin/events?topics=workers", timeout=60) as answer:
                while not is_over.is_set() and answer.readline():
                    pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield
    is_over.set()
    reader.join(timeout=60)


# the browser -------------------------------------------------------------------------------------


def browser_figures(fleet: RunningFleet) -> Iterator[Figure]:
    from playwright.sync_api import sync_playwright  # installed by `make bench-console` only

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        paints = [first_paint_ms(browser, fleet) for _ in range(NUM_ROUNDS)]
        updates = [update_ms(browser, fleet)]
        browser.close()
    yield median_of("console.first_paint_ms", "ms", 300, paints)
    yield best_of("console.update_ms", "ms", 50, updates)


def first_paint_ms(browser: Any, fleet: RunningFleet) -> float:
    page = browser.new_page()
    page.goto(fleet.admin_url + "/")
    page.locator("tbody tr.row").first.wait_for()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return float(paint)


def update_ms(browser: Any, fleet: RunningFleet) -> float:
    """The main thread's time per update: the answer is read and the rows in sight are drawn."""
    with _direct.open(fleet.admin_url + "/admin/workers", timeout=10) as answer:
        real = json.load(answer)
    one = json.dumps(real["endpoints"][0])
    name = real["endpoints"][0]["workers"][0]["id"]
    endpoints = [json.loads(one.replace(name, f"10.0.{i // 250}.{i % 250}:8000")) for i in range(NUM_WORKERS)]
    events = f"retry: 200\n\nevent: workers\ndata: {json.dumps(real | {'endpoints': endpoints})}\n\n"
    page, asked = browser.new_page(), []

    def answer_events(route: Any) -> None:
        asked.append(route)
        route.fulfill(body=events, content_type="text/event-stream")

    page.route("**/admin/events*", answer_events)
    page.goto(fleet.admin_url + "/")
    page.locator("tbody tr.row").first.wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before, num_before = task_s(session), len(asked)
    page.wait_for_timeout(1000 * UPDATES_S)
    taken_s, num_updates = task_s(session) - before, len(asked) - num_before
    page.close()
    return 1000 * taken_s / max(1, num_updates)


def task_s(session: Any) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


if __name__ == "__main__":
    main()
