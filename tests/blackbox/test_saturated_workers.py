"""Workers that reject requests because they are saturated: other workers get them, and none is ejected."""

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.engine_refusals import SGLANG, VLLM_REQUESTS, VLLM_TOKENS
from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.scripted_worker import Call, Script, answer_ok
from tests.support.patience import until

JSON = (b"Content-Type", b"application/json")


def rejects(body: bytes, status: int = 503, *headers: tuple[bytes, bytes]) -> Script:
    async def script(call: Call) -> None:
        await call.send(wire(status, body, JSON, *headers))

    return script


@pytest.mark.parametrize("body", [VLLM_REQUESTS, VLLM_TOKENS, SGLANG])
async def test_rejected_requests_go_to_another_worker_and_eject_none(body: bytes) -> None:
    async with running("KVGATE_SLOW_START_S=0", "--eject-after-failures", "2") as bench:
        full = await bench.worker(script=rejects(body))
        other = await bench.worker()

        async def is_asked_thrice() -> bool:
            answer = await bench.ask(post(completion("x")))
            assert (answer.status, answer.body) == (200, b'{"ok":true}')
            return len(full.calls) >= 3

        await until(is_asked_thrice, "three rejections")
        assert len(other.calls) > len(full.calls), "a rejection keeps further requests away for a while"
        total = bench.gateway.total
        assert await total("kvgate_worker_rejections_total") == len(full.calls)
        assert await total("kvgate_worker_failed_requests_total") == 0
        assert await total("kvgate_worker_ejections_total") == 0
        full.script, num_before = answer_ok, len(full.calls)

        async def is_back() -> bool:
            await bench.ask(post(completion("again")))
            return len(full.calls) > num_before

        await until(is_back, "requests to the worker that was saturated")


async def test_the_last_worker_is_asked_again_and_its_rejection_reaches_the_client(bench: Bench) -> None:
    worker = await bench.worker(script=rejects(VLLM_REQUESTS))
    for _ in range(8):
        answer = await bench.ask(post(completion("x")))
        assert (answer.status, answer.body) == (503, VLLM_REQUESTS)
        assert answer.values(b"retry-after") == [b"1"]
    assert len(worker.calls) == 8
    assert "not ejected" not in "".join(bench.gateway.log)
    worker.script = answer_ok
    assert (await bench.ask(post(completion("x")))).status == 200


@pytest.mark.parametrize("status", [503, 429])
async def test_the_workers_own_retry_after_is_passed_on(bench: Bench, status: int) -> None:
    after = (b"Retry-After", b"17")
    await bench.worker(script=rejects(b"{}", status, after))
    await bench.worker(script=rejects(b"{}", status, after))
    answer = await bench.ask(post(completion("x")))
    assert (answer.status, answer.values(b"retry-after")) == (status, [b"17"])


async def test_a_503_of_another_kind_is_a_failure(bench: Bench) -> None:
    await bench.worker(script=rejects(b"dead inside"))
    answer = await bench.ask(post(completion("x")))
    assert (answer.status, answer.body, answer.values(b"retry-after")) == (503, b"dead inside", [])
    await bench.worker()
    for _ in range(4):
        assert (await bench.ask(post(completion("x")))).status == 200
    assert await bench.gateway.total("kvgate_worker_rejections_total") == 0


@pytest.mark.parametrize("size", [0, 1, 16 << 10, 1 << 20])
async def test_a_refusal_of_any_length_is_passed_on_whole(bench: Bench, size: int) -> None:
    body = b"x" * size
    await bench.worker(script=rejects(body, 429))
    answer = await bench.ask(post(completion("x")))
    assert (answer.status, answer.body) == (429, body)


async def test_a_refusal_that_is_cut_is_a_failed_attempt(bench: Bench) -> None:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\nhalf")
        call.close()

    await bench.worker(script=script)
    answer = await bench.ask(post(completion("x")))
    assert (answer.status, answer.error["code"]) == (502, "worker_failed")
