"""Prefill and decode workers as processes, and the installed gateway: whichever process is killed, no
request is lost while a decode worker is left, but those that two killed workers had.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from gateway.app import bundled_tokenizer
from loadtest.fleet import LISTENING, SIM_READY, first_match, running
from tests.support.patience import patience, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SIM = (
    "--port",
    "0",
    "--kv-blocks",
    "4000",
    "--prefill-tokens-per-s",
    "20000",
    "--decode-tokens-per-s",
    "400",
)
PROMPT = list(range(600))
NUM_REQUESTS = 60
DIED = 'kvgate_disaggregation_failures_total{reason="died"}'


@dataclass(frozen=True, slots=True)
class Process:
    url: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Fleet:
    url: str
    admin_url: str
    prefills: Sequence[Process]
    decodes: Sequence[Process]
    alone: Process

    async def ask(self, number: int, url: str = "") -> tuple[int, str]:
        """Status and text of another prompt for each number; every second one is streamed."""
        body = {"model": "m", "prompt": [number, *PROMPT], "max_tokens": 16, "temperature": 0}
        path = f"{url or self.url}/v1/completions"
        async with _session() as http, http.post(path, json={**body, "stream": number % 2 > 0}) as answer:
            data = (await answer.read()).decode()
        events = [line[6:] for line in data.splitlines() if line.startswith("data: {")] or [data]
        parts = [json.loads(event).get("choices", []) for event in events]
        return answer.status, "".join(choice["text"] for choices in parts for choice in choices)

    async def metric(self, name: str) -> float:
        async with _session() as session, session.get(f"{self.admin_url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    async def until(self, name: str, is_right: Callable[[float], bool]) -> None:

        async def has_come() -> bool:
            return is_right(await self.metric(name))

        await until(has_come, seconds=60)

    async def are_up(self) -> None:
        await self.until("kvgate_worker_up{", lambda num: num >= 4)

    async def all_end(self) -> None:
        await self.until("kvgate_worker_requests_in_flight{", lambda num: num == 0)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120))


@contextmanager
def split_fleet(*flags: str, sims: Sequence[str] = (), first: Sequence[str] = ()) -> Iterator[Fleet]:
    """Fleet of processes; `sims` are options of the disaggregated workers, `first` more of the first
    prefill worker.
    """
    with ExitStack() as stack:

        def sim(*more: str) -> Process:
            process = stack.enter_context(running("sim", *SIM, *more))
            return Process(first_match(process, SIM_READY)[0], process.pid)

        prefills = [sim("--pd-role", "prefill", *sims, *more) for more in (first, ())]
        decodes = [sim("--pd-role", "decode", *sims) for _ in range(2)]
        alone = sim()
        workers = [flag for started in prefills for flag in ("--prefill", started.url)]
        workers += [flag for started in decodes for flag in ("--decode", started.url)]
        options = "--tokenizer", str(bundled_tokenizer()), "--disaggregation", "always", *flags
        gateway = stack.enter_context(
            running("serve", "--port", "0", "--admin-port", "0", *workers, *options)
        )
        url, admin_url = first_match(gateway, LISTENING)
        yield Fleet(url, admin_url, prefills, decodes, alone)


async def are_right(fleet: Fleet, reported: Any) -> None:
    alone = [await fleet.ask(number, fleet.alone.url) for number in range(NUM_REQUESTS)]
    assert list(reported) == alone


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_killed_prefill_process_loses_no_request(processes: str) -> None:
    with split_fleet("--processes", processes) as fleet:
        await fleet.are_up()
        requests = asyncio.gather(*map(fleet.ask, range(NUM_REQUESTS)))
        await fleet.until("kvgate_kv_transfer_duration_seconds_count", lambda num: num >= 5)
        fleet.prefills[0].kill()
        await are_right(fleet, await requests)
        await fleet.all_end()


async def test_two_killed_prefill_processes_lose_only_requests_that_both_had() -> None:
    """Such a request may be what kills them, so that no third worker gets it."""
    with split_fleet() as fleet:
        await fleet.are_up()
        requests = asyncio.gather(*map(fleet.ask, range(NUM_REQUESTS)))
        await fleet.until("kvgate_kv_transfer_duration_seconds_count", lambda num: num >= 5)
        fleet.prefills[0].kill()
        await fleet.until("kvgate_kv_transfer_duration_seconds_count", lambda num: num >= 15)
        num_moved = await fleet.metric(DIED)
        fleet.prefills[1].kill()
        lost = {number for number, (status, _) in enumerate(await requests) if status == 502}
        assert len(lost) <= num_moved
        for number, reported in enumerate(requests.result()):
            assert number in lost or reported == await fleet.ask(number, fleet.alone.url)
        await fleet.all_end()


async def test_a_killed_decode_process_loses_only_requests_that_it_had_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVGATE_RETRY_SHARE", "1")
    with split_fleet("--max-attempts", "5") as fleet:
        await fleet.are_up()
        requests = asyncio.gather(*map(fleet.ask, range(NUM_REQUESTS)))
        await fleet.until("kvgate_prefill_leg_duration_seconds_count", lambda num: num >= 5)
        fleet.decodes[0].kill()
        reported = await requests
        for number, (status, text) in enumerate(reported):
            _, alone = await fleet.ask(number, fleet.alone.url)
            assert status == 200
            assert text == alone if number % 2 == 0 else alone.startswith(text)
        await fleet.all_end()


# A lease is also the longest time in which a good pair must have made and fetched a prompt, behind 60 others.
FAULTS: dict[str, tuple[dict[str, Any], Sequence[str], str]] = {
    "a worker that cannot answer alone gets no blocks": (
        {"hang_transfer": True},
        ("--pd-protocol", "sglang", "--pull-timeout-s", f"{patience(10):g}", "--lease-s", f"{patience(3):g}"),
        'kvgate_disaggregation_failures_total{reason="transfer"}',
    ),
    "prefill makes another prompt": (
        {"extra_prompt_tokens": 3},
        (),
        "kvgate_disaggregation_prompt_mismatches_total",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_prefill_worker_with_wrong_answers_is_not_noticed_by_clients(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATE_RETRY_SHARE", "1")
    faults, sims, metric = FAULTS[fault]
    engine = ("--engine", "sglang", "--events", "off", "--max-attempts", "5") if sims else ()
    first = ("--faults", json.dumps(faults))
    with split_fleet(*engine, sims=sims, first=first) as fleet:
        await fleet.are_up()
        await are_right(fleet, await asyncio.gather(*map(fleet.ask, range(NUM_REQUESTS))))
        assert await fleet.metric(metric) > 0
        await fleet.all_end()
        assert await fleet.metric("kvgate_prefill_pinned_tokens{") == 0
