"""Prefixes that joining workers are sent: what is in them, and what happens when a worker refuses them, dies
with them, or is needed by a client."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import Header, completion, post, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker, answer_ok, hang
from tests.support.patience import stays, until

PREFIX = list(range(320))
WARMING = "KVGATE_WARMING_SHARE=0.5"
NUM = 60
JSON: Header = (b"Content-Type", b"application/json")
REQUESTS = "kvgate_warming_requests_total"


async def heat(bench: Bench, **fields: Any) -> None:
    """Send many requests that share a prefix of 20 blocks, and nothing else."""
    client = await bench.client()
    for number in range(NUM):
        tail = [1000 + 40 * number + n for n in range(40)]
        answer = await client.ask(post(completion(PREFIX + tail, **fields)))
        assert answer.status == 200, answer.body


async def joins(bench: Bench, script: Callable[[Call], Awaitable[None]]) -> FakeWorker:
    """Add a worker that answers prefixes by a script."""
    worker = FakeWorker(("m",))
    worker.prefix_script = script
    bench.workers.append(await worker.start())
    await bench.gateway.join(worker)
    return worker


async def results(bench: Bench) -> dict[str, float]:
    page = await bench.gateway.metrics()
    return {
        name.split('"')[1]: value for name, value in page.items() if name.startswith(f"{REQUESTS}{{result")
    }


@asynccontextmanager
async def heated(*flags: str, **fields: Any) -> AsyncIterator[Bench]:
    async with running(WARMING, "--probe-interval-s", "0.2", *flags) as bench:
        await bench.worker()
        await heat(bench, **fields)
        yield bench


async def refuse(call: Call) -> None:
    await call.send(wire(400, b'{"error":"prompt must be a string"}', JSON))


async def reset(call: Call) -> None:
    call.reset()


async def test_what_is_sent_is_the_shared_part_with_its_salt_and_nothing_is_counted_as_a_clients() -> None:
    async with heated(cache_salt="secret") as bench:
        num_requests = await bench.gateway.total("kvgate_requests_total")
        worker = await joins(bench, answer_ok)
        await until(lambda: worker.prefixes, "a prefix")
        body = json.loads(worker.prefixes[0].body)
        assert body["prompt"] == PREFIX
        assert (body["model"], body["max_tokens"], body["cache_salt"]) == ("m", 1, "secret")
        assert body["priority"] == 2**31 - 1
        await bench.gateway.logged("warmed: 1 prefixes, 320 tokens of 320")
        assert await bench.gateway.total("kvgate_requests_total") == num_requests
        assert await results(bench) == {"done": 1.0}
        await stays(lambda: len(worker.prefixes) == 1, 1.0, "it is sent once")
        log = "\n".join(bench.gateway.log)
        assert "secret" not in log


@pytest.mark.parametrize(
    ("script", "why"), [(refuse, "answered 400 to a prompt of token ids"), (reset, "did not answer")]
)
async def test_worker_that_refuses_or_dies_is_sent_no_more(
    script: Callable[[Call], Awaitable[None]], why: str
) -> None:
    async with heated() as bench:
        worker = await joins(bench, script)
        await bench.gateway.logged(f"warmed: 0 prefixes, 0 tokens of 320 .*no more are sent, since it {why}")
        await stays(lambda: len(worker.prefixes) == 1, 1.0, "it is sent no other")
        assert await results(bench) == {"failed": 1.0}
        assert len([line for line in bench.gateway.log if "kvgate.warming" in line]) == 1


async def test_prefix_is_load_and_gives_way_to_a_clients_request() -> None:
    async with heated() as bench:
        worker = await joins(bench, hang)
        await until(lambda: worker.prefixes, "a prefix")
        await until(lambda: bench.gateway.total("kvgate_worker_requests_in_flight"), "it is booked")

        async def answer_behind_it(call: Call) -> None:
            await worker.prefixes[0].gone.wait()
            await answer_ok(call)

        worker.script = answer_behind_it
        old = bench.workers[0]
        await bench.gateway.admin("POST", f"/admin/workers/{old.id}/drain")
        answer = await bench.ask(post(completion(list(range(2000, 2040)))))
        assert answer.status == 200

        async def is_counted() -> bool:
            return (await results(bench)).get("cancelled", 0.0) >= 1.0

        await until(is_counted, "it is counted")
        await bench.gateway.admin("POST", f"/admin/workers/{worker.id}/drain")


async def test_nothing_is_sent_or_kept_by_default() -> None:
    async with running("--probe-interval-s", "0.2") as bench:
        await bench.worker()
        await heat(bench)
        worker = await joins(bench, answer_ok)
        await stays(lambda: not worker.prefixes, 2.0, "nothing is sent")
        assert await bench.gateway.total("kvgate_warming_kept_bytes") == 0.0
