"""Several processes behind one port: one load, one admin API, and dead processes are replaced."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.real_gateway import Gateway, refusal
from tests.support.blackbox.scripted_worker import FakeWorker, answer_ok, hang
from tests.support.blackbox.several_processes import (
    TWO,
    Streams,
    begin_stream,
    end_stream,
    is_running,
    on_each,
    pids,
)
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience, until


@contextlib.asynccontextmanager
async def running_with_deaths(*flags: str) -> AsyncIterator[Bench]:
    """Gateway as in `running`, with processes that die and are logged."""
    bench = Bench(await Gateway.start(*flags))
    try:
        yield bench
    finally:
        try:
            await bench.close()
        finally:
            code = await bench.gateway.stop()
    assert code == 0, "\n".join(bench.gateway.log)
    others = [line for line in bench.gateway.faults() if " died" not in line]
    assert not others, "\n".join(others)


async def test_requests_and_totals_are_spread_over_the_processes_and_add_up() -> None:
    async with running(*TWO) as bench:
        await bench.worker()
        for client in await on_each(bench, 8):
            for _ in range(5):
                assert (await client.ask(post(completion()))).status == 200
        metrics = await bench.gateway.metrics()
        assert metrics['kvgate_responses_total{code="200"}'] == 40
        assert await bench.gateway.total("kvgate_worker_requests_total") == 40
        for row in (0, 1):
            assert metrics[f'kvgate_process_responses_total{{process="{row}"}}'] == 20
        assert metrics["kvgate_processes"] == 2
        stages = {
            name: n
            for name, n in metrics.items()
            if name.startswith("kvgate_decision_stage_duration_seconds_count")
        }
        assert set(stages.values()) == {40}
        decisions = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"]
        assert len(set(decisions)) == 40
        for decision in decisions:
            assert (await bench.gateway.admin("GET", f"/admin/decisions/{decision}")).json["id"] == decision
        assert (await bench.gateway.admin("GET", "/admin/decisions/none")).status == 404


@pytest.mark.parametrize("flags", [(), TWO])
async def test_a_burst_of_equal_prompts_spreads_over_the_workers(flags: tuple[str, ...]) -> None:
    async with running(*flags) as bench:
        workers = [await bench.worker(script=hang) for _ in range(4)]
        body = post(completion(list(range(1000))))
        clients = [await bench.client() for _ in range(64)]
        await asyncio.gather(*(client.send(body) for client in clients))
        await until(lambda: sum(len(worker.calls) for worker in workers) == 64, "all are at a worker")
        spread = [len(worker.calls) for worker in workers]
        # A holder is worth a little more waiting, and more on a busy machine, where the burst comes in parts.
        assert min(spread) > 0 and max(spread) <= 32, spread
        assert await bench.gateway.total("kvgate_worker_requests_in_flight") == 64
        for client in clients:
            client.reset()
        await bench.nothing_in_flight()


async def test_a_killed_process_loses_its_own_requests_only_and_is_replaced() -> None:
    async with running_with_deaths(*TWO) as bench:
        script = Streams()
        worker = await bench.worker(script=script)
        gateway, before = bench.gateway, pids(bench.gateway)
        clients = await on_each(bench, 6)
        for client in clients:
            await begin_stream(client)
        os.kill(before[0], signal.SIGKILL)
        await gateway.logged(rf"process 0 \(pid {before[0]}\): died .*SIGKILL")
        await until(lambda: sum(call.gone.is_set() for call in worker.calls) == 3, "its requests are gone")
        assert await gateway.total("kvgate_worker_requests_in_flight") == 3
        for client in await on_each(bench, 4):  # while it is replaced
            assert (await client.ask(request("GET", "/health"))).status == 200
        await until(lambda: pids(gateway)[0] != before[0], "it is replaced")
        assert (await gateway.metrics())['kvgate_process_restarts_total{process="0"}'] == 1
        script.may_end.set()
        ends = [await _ends_well(client) for client in clients]
        assert Counter(ends) == {True: 3, False: 3}
        worker.script = answer_ok
        for client in await on_each(bench, 4):  # the new process knows the worker that joined at run time
            assert (await client.ask(post(completion()))).status == 200
        shares = [n for name, n in (await gateway.metrics()).items() if "process_responses_total" in name]
        assert len(shares) == 2 and all(shares)


async def _ends_well(client: Client) -> bool:
    try:
        await end_stream(client)
    except Cut:
        return False
    return True


async def test_totals_never_decrease_when_a_process_dies() -> None:
    async with running_with_deaths(*TWO) as bench:
        await bench.worker()
        for client in await on_each(bench, 2):
            assert (await client.ask(post(completion()))).status == 200
        assert await bench.gateway.total("kvgate_responses_total") == 2  # seen by a scrape
        before = pids(bench.gateway)
        for number in (0, 1):
            os.kill(before[number], signal.SIGKILL)
        await until(
            lambda: all(pids(bench.gateway)[number] != before[number] for number in (0, 1)), "both are new"
        )
        assert await bench.gateway.total("kvgate_responses_total") == 2
        assert (await bench.ask(post(completion()))).status == 200
        assert await bench.gateway.total("kvgate_responses_total") == 3


async def test_a_process_asked_to_stop_finishes_and_is_replaced() -> None:
    async with running(*TWO) as bench:
        script = Streams()
        await bench.worker(script=script)
        before = pids(bench.gateway)
        clients = await on_each(bench, 2)
        for client in clients:
            await begin_stream(client)
        for pid in before.values():
            os.kill(pid, signal.SIGTERM)
        script.may_end.set()
        for client in clients:
            await end_stream(client)
            await client.close()
        await until(
            lambda: all(pids(bench.gateway)[number] != pid for number, pid in before.items()), "replaced"
        )
        assert (await bench.ask(post(completion()))).status == 200
        await bench.gateway.logged(rf"process 0 \(pid {before[0]}\): stopped by a signal")


async def test_workers_are_added_and_dropped_in_all_processes() -> None:
    async with running(*TWO) as bench:
        worker = await bench.worker()
        clients = await on_each(bench, 4)
        for client in clients:
            assert (await client.ask(post(completion()))).status == 200
        again = await bench.gateway.admin("POST", "/admin/workers", b'{"url":"%b"}' % worker.url.encode())
        assert (again.status, again.json["added"]) == (200, False)
        assert (await bench.gateway.admin("POST", "/admin/workers", b'{"url":"ftp://x"}')).status == 400
        assert (await bench.gateway.admin("DELETE", f"/admin/workers/{worker.id}")).status == 200
        for client in clients:
            assert (await client.ask(post(completion()))).status == 503
        assert (await bench.gateway.admin("DELETE", f"/admin/workers/{worker.id}")).status == 404


async def test_a_replaced_process_does_not_bring_a_dropped_worker_back() -> None:
    first, second = await FakeWorker().start(), await FakeWorker().start()
    async with running_with_deaths(*TWO, "--worker", first.url + "/", "--worker", second.url) as bench:
        bench.workers += [first, second]
        for worker in (first, second):
            await until(lambda w=worker: bench.gateway.is_up(w), "joined")  # type: ignore[misc]
        await bench.gateway.drop(first)
        before = pids(bench.gateway)
        os.kill(before[1], signal.SIGKILL)
        await until(lambda: pids(bench.gateway)[1] != before[1], "replaced")
        for client in await on_each(bench, 4):
            assert (await client.ask(post(completion()))).status == 200
        assert first.calls == []
        endpoints = (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"]
        assert [endpoint["url"] for endpoint in endpoints] == [second.url]


async def test_a_drain_applies_to_all_processes_and_to_later_ones() -> None:
    first, second = await FakeWorker().start(), await FakeWorker().start()
    async with running_with_deaths(*TWO, "--worker", first.url, "--worker", second.url) as bench:
        bench.workers += [first, second]
        for worker in (first, second):
            await until(lambda w=worker: bench.gateway.is_up(w), "joined")  # type: ignore[misc]
        assert (await bench.gateway.admin("POST", f"/admin/workers/{first.id}/drain")).status == 200
        for client in await on_each(bench, 4):
            assert (await client.ask(post(completion()))).status == 200
        before = pids(bench.gateway)
        os.kill(before[1], signal.SIGKILL)
        await until(lambda: pids(bench.gateway)[1] != before[1], "replaced")
        for client in await on_each(bench, 4):
            assert (await client.ask(post(completion()))).status == 200
        assert (first.calls, len(second.calls)) == ([], 8)
        assert (await bench.gateway.admin("DELETE", f"/admin/workers/{first.id}/drain")).status == 200

        async def reaches_first() -> bool:
            for client in await on_each(bench, 2):
                assert (await client.ask(post(completion()))).status == 200
            return bool(first.calls)

        await until(reaches_first, "requests reach the first worker again")


async def test_a_stop_lets_requests_finish_in_all_processes() -> None:
    async with running(*TWO) as bench:
        script = Streams()
        await bench.worker(script=script)
        streaming, idle = await on_each(bench, 2), await on_each(bench, 2)
        for client in streaming:
            await begin_stream(client)
        bench.gateway.process.send_signal(signal.SIGTERM)
        for client in idle:
            await client.ends()
        assert (await bench.gateway.admin("GET", "/ready")).status == 503
        with pytest.raises(OSError):
            await Client.open(bench.gateway.port)
        script.may_end.set()
        for client in streaming:
            await end_stream(client)
            await client.ends()
        assert await bench.gateway.exited() == 0


async def test_a_request_cut_at_the_end_of_a_drain_is_logged_once() -> None:
    async with running(*TWO, "--drain-timeout-s", "0.2") as bench:
        await bench.worker(script=hang)
        clients = await on_each(bench, 2)
        for number, client in enumerate(clients):
            await client.send(post(completion(), (b"X-Request-Id", b"request-%d" % number)))
        await until(lambda: len(bench.workers[0].calls) == 2, "both are at the worker")
        assert await bench.gateway.stop() == 0
        for number, client in enumerate(clients):
            await client.is_cut()
            named = [line for line in bench.gateway.log if f"request-{number}" in line]
            assert len(named) == 1 and "WARNING" in named[0]


async def test_processes_end_with_a_killed_supervisor() -> None:
    gateway = await Gateway.start(*TWO)
    bench, script = Bench(gateway), Streams()
    worker = await bench.worker(script=script)
    client = await bench.client()
    await begin_stream(client)
    gateway.process.kill()
    await until(lambda: not is_running(gateway.process.pid), "the supervisor is gone")
    script.may_end.set()
    await end_stream(client)
    await until(lambda: not any(is_running(pid) for pid in pids(gateway).values()), "no process is left")
    assert await gateway.exited() == -signal.SIGKILL
    await client.close()
    await worker.die()
    assert not gateway.faults()


@pytest.mark.parametrize(
    "arguments", [("--tokenizer", "/nowhere"), ("--worker", "http://user:secret@h"), ("--processes", "0")]
)
async def test_a_wrong_configuration_is_reported_once_and_ends_with_2(arguments: tuple[str, ...]) -> None:
    printed = await refusal(*TWO, *arguments)
    lines = [line for line in printed.splitlines() if line.startswith("kvgate: ")]
    assert len(lines) == 1, printed


BROKEN_PART = """
import sys
if "process" in sys.orig_argv:
    from gateway.app.parts.telemetry import TelemetryPart
    async def start(self, tasks): raise OSError(28, "full")
    TelemetryPart.start = start
"""
"""A `sitecustomize.py` for processes in which a component does not start."""


@pytest.mark.interpreted
async def test_a_component_that_does_not_start_in_a_process_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN_PART)
    arguments = (*TWO, "--port", "0", "--admin-port", "0")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "kvgate", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=patience(60),
        env={**clean_environment(), "PYTHONPATH": str(tmp_path)},
    )
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("\nkvgate: the telemetry part did not start: No space left on device\n")
