"""A model without workers: its requests wait for the first one, and the rest get a true answer."""

import json

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import CHAT, Header, completion, post
from tests.support.blackbox.strict_client import Client
from tests.support.patience import until

NAMED = "KVGATE_SCALING_MODELS=m"
EMBEDDINGS, MESSAGES, RESPONSES, TRANSCRIPTIONS = (
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
    "/v1/audio/transcriptions",
)
FORM: Header = (b"Content-Type", b"multipart/form-data; boundary=x")
SOUND = b"".join(
    b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % field
    for field in ((b"model", b"m"), (b"file", b"0000"))
)


async def waiting(bench: Bench, num: int) -> None:
    async def are_waiting() -> bool:
        return await bench.gateway.total("kvgate_queue_requests") == num

    await until(are_waiting, f"{num} requests wait")


async def sent(bench: Bench, data: bytes) -> Client:
    """Send a request, which is answered later."""
    client = await bench.client()
    await client.send(data)
    return client


async def test_every_route_to_a_model_waits_for_its_first_worker() -> None:
    messages = [{"role": "user", "content": "hi"}]
    asked = [
        post(completion()),
        post(json.dumps({"model": "m", "messages": messages}).encode(), target=CHAT),
        post(json.dumps({"model": "m", "messages": messages, "max_tokens": 5}).encode(), target=MESSAGES),
        post(json.dumps({"model": "m", "input": "hi"}).encode(), target=RESPONSES),
        post(json.dumps({"model": "m", "input": "hi"}).encode(), target=EMBEDDINGS),
        post(SOUND + b"--x--\r\n", FORM, target=TRANSCRIPTIONS),
    ]
    async with running(NAMED) as bench:
        clients = [await sent(bench, each) for each in asked]
        await waiting(bench, len(asked))
        assert await bench.gateway.total("kvgate_queue_body_bytes") > 0
        tokens = await bench.ask(post(json.dumps({"model": "m", "prompt": "a"}).encode(), target="/tokenize"))
        assert tokens.status == 503, "what computes nothing does not wait"
        await bench.worker()
        assert [(await client.answer()).status for client in clients] == [200] * len(asked)
        assert await bench.gateway.total("kvgate_queue_body_bytes") == 0


async def test_models_that_nothing_expects_are_answered_at_once() -> None:
    async with running(NAMED) as bench:
        assert (await bench.ask(post(completion(model="other")))).status == 503
        await bench.worker()
        answer = await bench.ask(post(completion(model="other")))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_time_over_is_a_503_with_retry_after_and_for_streams_an_error_event() -> None:
    flags = (NAMED, "KVGATE_SCALING_ZERO_WAIT_S=1.5", "--stream-keepalive-s", "0.3")
    async with running(*flags) as bench:
        plain = await sent(bench, post(completion()))
        client = await sent(bench, post(completion(stream=True)))
        head = await client.head()
        assert head.status == 200 and head.value(b"content-type") == b"text/event-stream; charset=utf-8"
        assert (await client.event()).startswith(b":"), "a comment keeps proxies patient"
        event = b":"
        while event.startswith(b":"):
            event = await client.event()
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert error["code"] == "no_worker" and "no worker for 'm' came up within" in error["message"]
        answer = await plain.answer()
        assert (answer.status, answer.error["code"]) == (503, "no_worker")
        assert answer.value(b"retry-after") == b"2", "no start was seen yet: the TTFT objective"
        await bench.gateway.logged("model m: no worker came up within")
        page = (await bench.gateway.admin("GET", "/metrics")).body.decode()
        assert 'kvgate_queue_exits_total{model="m",result="no_worker"} 2.0' in page


async def test_number_and_bytes_are_bounded_and_a_client_that_leaves_gives_its_place() -> None:
    flags = (NAMED, "KVGATE_SCALING_ZERO_MAX_REQUESTS=2", "KVGATE_SCALING_ZERO_MAX_BYTES=20000")
    async with running(*flags) as bench:
        first = await sent(bench, post(completion()))
        await waiting(bench, 1)
        answer = await bench.ask(post(completion("x" * 20000)))
        assert (answer.status, answer.error["code"]) == (503, "no_worker")
        second = await sent(bench, post(completion()))
        await waiting(bench, 2)
        answer = await bench.ask(post(completion()))
        assert answer.status == 503 and "no more requests may wait" in answer.error["message"]
        await first.close()
        await waiting(bench, 1)
        third = await sent(bench, post(completion()))
        await waiting(bench, 2)
        await bench.worker()
        assert (await second.answer()).status == (await third.answer()).status == 200


async def test_those_that_wait_at_a_shutdown_are_answered() -> None:
    async with running(NAMED, "--drain-timeout-s", "2") as bench:
        client = await sent(bench, post(completion()))
        await waiting(bench, 1)
        bench.gateway.process.terminate()
        assert (await client.answer()).status == 503
        await bench.gateway.exited()


async def test_a_model_that_lost_its_last_worker_waits_for_the_next_one() -> None:
    async with running("KVGATE_SCALING_MODELS=another", "--probe-interval-s", "0.2") as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(completion()))).status == 200
        await worker.die()

        async def is_down() -> bool:
            return not await bench.gateway.is_up(worker)

        await until(is_down, "the worker is down")
        client = await sent(bench, post(completion()))
        await waiting(bench, 1)
        await worker.start()
        assert (await client.answer()).status == 200


async def test_each_process_holds_its_own_requests() -> None:
    async with running(NAMED, "--processes", "2") as bench:
        clients = [await sent(bench, post(completion())) for _ in range(8)]
        await waiting(bench, len(clients))
        (queue,) = (await bench.gateway.admin("GET", "/admin/admission")).json["queues"]
        assert queue["queued_requests"] == 8 and queue["zero_for_s"] >= 0.0
        assert queue["queued_body_bytes"] == 8 * len(completion())
        await bench.worker()
        assert [(await client.answer()).status for client in clients] == [200] * len(clients)


async def test_off_is_503_at_once() -> None:
    async with running(NAMED, "KVGATE_SCALING_ZERO_WAIT_S=0") as bench:
        assert (await bench.ask(post(completion()))).status == 503
