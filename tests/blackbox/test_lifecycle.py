"""From start to exit: waiting for workers, draining, stopping."""

import asyncio
import signal

import pytest

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, request, wire
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import Call, FakeWorker, hang
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import patience, until

pytestmark = pytest.mark.interpreted


async def test_workers_given_by_flag_join() -> None:
    first, second = await FakeWorker(["m", "a"]).start(), await FakeWorker(["m", "b"]).start()
    async with running("--worker", first.url, "--worker", second.url) as bench:
        bench.workers += [first, second]
        for worker in (first, second):
            await until(lambda w=worker: bench.gateway.is_up(w), "joined")  # type: ignore[misc]
        models = (await bench.ask(request("GET", "/v1/models"))).json["data"]
        assert [model["id"] for model in models] == ["a", "b", "m"]


async def test_a_worker_that_is_not_up_yet_is_waited_for() -> None:
    worker = await FakeWorker().start()
    await worker.die()  # its port is known, and closed
    async with running("--worker", worker.url, "--probe-interval-s", "0.05") as bench:
        bench.workers.append(worker)
        gateway = bench.gateway
        await gateway.logged(rf"waiting for worker {worker.url}")
        answer = await bench.ask(request("GET", "/ready"))
        assert answer.status == 503
        assert int(answer.value(b"retry-after") or 0) >= 1
        assert (await bench.ask(request("GET", "/health"))).status == 200
        assert (await bench.ask(post(completion()))).status == 503
        endpoint = await gateway.endpoint(worker)
        assert endpoint
        assert (endpoint["state"], endpoint["workers"]) == ("joining", [])
        assert endpoint["last_error"]
        await worker.start()
        await until(lambda: gateway.is_up(worker), "joined")
        assert (await bench.ask(request("GET", "/ready"))).status == 200
        assert (await bench.ask(post(completion()))).status == 200


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_request_as_soon_as_the_port_listens_is_answered(processes: str) -> None:
    worker = await FakeWorker().start()
    worker.probe_s = 0.4
    async with running("--worker", worker.url, "--processes", processes) as bench:
        bench.workers.append(worker)
        for _ in range(2):
            client = await bench.client()
            assert (await client.ask(post(completion()))).status == 200


async def test_an_unreachable_worker_does_not_delay_listening() -> None:
    worker = await FakeWorker().start()
    worker.probe_s = 60.0
    async with running("--worker", worker.url, "--probe-timeout-s", "0.2") as bench:
        bench.workers.append(worker)
        assert (await bench.ask(request("GET", "/ready"))).status == 503


async def _is_ready(gateway: Gateway) -> bool:
    return (await gateway.admin("GET", "/ready")).status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_requests_finish(number: signal.Signals) -> None:
    async with running() as bench:
        gateway = bench.gateway
        may_end = asyncio.Event()

        async def script(call: Call) -> None:
            if call.body == completion("plain"):
                await may_end.wait()
                return await call.send(wire(200, b"{}"))
            await call.send(SSE_HEAD + chunked(event("a"), end=False))
            await may_end.wait()
            return await call.send(chunked(event("b"), DONE))

        worker = await bench.worker(script=script)
        streaming, plain, silent, idle = [await bench.client() for _ in range(4)]
        assert (await idle.ask(request("GET", "/health"))).status == 200
        await streaming.send(post(completion(stream=True)))
        await streaming.head()
        assert await streaming.event() == event("a")
        await plain.send(post(completion("plain")) + post(completion("behind it")))
        await worker.called(2)

        gateway.process.send_signal(number)
        await idle.ends()
        await silent.ends()
        assert not await _is_ready(gateway)
        assert (await gateway.admin("GET", "/health")).status == 200
        with pytest.raises(OSError):
            await Client.open(gateway.port)
        may_end.set()
        assert [await streaming.event(), await streaming.event()] == [event("b"), DONE]
        assert await streaming.piece() == b""
        await streaming.ends()
        answer = await plain.answer()
        assert (answer.status, answer.value(b"connection")) == (200, b"close")
        await plain.ends()
        assert await gateway.exited() == 0
        assert len(worker.calls) == 2, "a request behind the last answer was sent to a worker"


async def test_requests_over_the_drain_timeout_are_cut_and_logged() -> None:
    async with running("--drain-timeout-s", "0.2") as bench:

        async def script(call: Call) -> None:
            if call.value(b"x-call") == b"the-stream":
                await call.send(SSE_HEAD + chunked(event("a"), end=False))
            await hang(call)

        worker = await bench.worker(script=script)
        streaming, waiting = await bench.client(), await bench.client()
        await streaming.send(
            post(completion(stream=True), (b"X-Request-Id", b"the-stream"), (b"X-Call", b"the-stream"))
        )
        await waiting.send(post(completion(), (b"X-Request-Id", b"the-waiting-one")))
        await streaming.head()
        assert await streaming.event() == event("a")
        await worker.called(2)
        assert await bench.gateway.stop() == 0
        with pytest.raises(Cut):
            while await streaming.piece():
                pass
        await waiting.is_cut()
        for name in ("the-stream", "the-waiting-one"):
            await bench.gateway.logged(f"WARNING.*{name}")
        for call in worker.calls:
            async with asyncio.timeout(patience(20)):
                await call.gone.wait()


async def test_a_stop_without_requests_is_immediate() -> None:
    async with running() as bench:
        assert (await bench.gateway.admin("GET", "/health")).status == 200


async def test_a_stop_does_not_wait_for_a_silent_worker() -> None:
    """Neither a probe without an answer nor a request in tokenization delays the end."""
    async with running("--drain-timeout-s", "0.2") as bench:
        worker = await bench.worker(script=hang)
        client = await bench.client()
        await client.send(post(completion("text")))
        await worker.called()
        assert await bench.gateway.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--worker", "10.0.0.1:8000"], "10.0.0.1:8000"),
        (["--worker", "http://user:secret@h"], "credentials"),
        (["--max-body-bytes", "many"], "max-body-bytes"),
        (["--port", "70000"], "port"),
        (["--policy", "best"], "policy"),
        (["--tokenizer", "/nowhere"], "/nowhere"),
    ],
)
async def test_a_wrong_configuration_is_reported_and_ends_with_2(arguments: list[str], reported: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "serve", "--port", "0", "--admin-port", "0", *arguments), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(patience(20)):
        _, printed = await process.communicate()
    assert process.returncode == 2
    assert reported in printed.decode()
    assert "Traceback" not in printed.decode()


async def test_an_occupied_port_is_reported(bench: Bench) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "serve", "--admin-port", "0", "--port", str(bench.gateway.port)),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(patience(20)):
        _, printed = await process.communicate()
    assert process.returncode == 2
    assert str(bench.gateway.port) in printed.decode()
    assert "Traceback" not in printed.decode()
