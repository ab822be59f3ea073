"""Simulated fleet with faults, for the console: markup in every name that clients or operators choose."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gateway.app import bundled_tokenizer
from gateway.demo.traffic import MODEL, traffic
from loadtest.fleet import SIM_READY, first_match, running
from loadtest.ports import free_port
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

MARKUP = "<img src=x onerror=document.title='broken'>"
TENANTS = ("search", "agents", f"{MARKUP}<b>t")
PLAIN_TENANTS = ("search", "agents", "support")
NUM_WORKERS = 3
NUM_REQUESTS = 60
SIM = ("sim", "--port", "0", "--kv-blocks", "4096", "--prefill-tokens-per-s", "20000")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class ConsoleFleet:
    gateway: GatewayProcess
    workers: tuple[str, ...]
    absent: str
    """URL of a worker that never joined."""


@contextmanager
def console_fleet(*flags: str, is_closed: bool = False, model: str = MARKUP) -> Iterator[ConsoleFleet]:
    """Three workers with events, one without, for another `model`, and one that is not there. The admin port
    of a fleet that `is_closed` is not asked whether the workers are up."""
    with ExitStack() as opened:
        sims = [
            opened.enter_context(running(*SIM, "--model", MODEL, "--seed", str(seed)))
            for seed in range(NUM_WORKERS)
        ]
        sims.append(opened.enter_context(running(*SIM, "--no-events", "--model", model)))
        urls = tuple(first_match(sim, SIM_READY)[0] for sim in sims)
        absent = f"http://127.0.0.1:{free_port()}"
        workers = [part for url in (*urls, absent) for part in ("--worker", url)]
        more = ("--tokenizer", str(bundled_tokenizer()), "--trust-headers-from", "127.0.0.1")
        gateway = GatewayProcess(*workers, *more, "--policy-shadow", "least_load", *flags, expect_errors=True)
        opened.enter_context(gateway)
        if not is_closed:
            wait_for_workers(gateway)
        yield ConsoleFleet(gateway, urls, absent)


def wait_for_workers(gateway: GatewayProcess, num_workers: int = NUM_WORKERS + 1) -> None:
    gateway._until(lambda: sum(worker["is_up"] for worker in gateway.workers()) == num_workers)


def play(gateway: GatewayProcess, num_requests: int = NUM_REQUESTS) -> None:
    """Requests of agents, about documents, and chats, of three tenants; some are refused."""
    bodies = [request.body | {"max_tokens": 8} for request in islice(traffic(), num_requests)]
    bodies += [{"model": MARKUP, "messages": [{"role": "user", "content": "Why?"}]}] * 3
    bodies += [{"model": f"none{MARKUP}", "messages": [{"role": "user", "content": "Why?"}]}] * 2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: ask(gateway, each[1], number=each[0]), enumerate(bodies)))


def ask(gateway: GatewayProcess, body: dict[str, Any], number: int = 0, *, named: bool = True) -> int:
    headers = {
        "content-type": "application/json",
        "x-kvgate-tenant": (TENANTS if named else PLAIN_TENANTS)[number % len(TENANTS)],
    }
    if named:
        headers["x-request-id"] = f"{MARKUP}-{number}"
    data = json.dumps(body).encode()
    request = urllib.request.Request(gateway.url + "/v1/chat/completions", data, headers)
    try:
        with _direct.open(request, timeout=patience(30)) as answer:
            answer.read()
            status: int = answer.status
            return status
    except urllib.error.HTTPError as exc:
        exc.read()
        return exc.code


def play_in_time(gateway: GatewayProcess, seconds: float) -> None:
    """The demo's traffic at its own pace."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        for number, request in enumerate(traffic()):
            if request.at_s > seconds:
                break
            time.sleep(max(0.0, request.at_s - (time.monotonic() - began_s)))
            pool.submit(ask, gateway, request.body, number, named=False)
