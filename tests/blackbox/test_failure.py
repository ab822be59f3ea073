"""Clients that disconnect and workers that die: each client gets an answer or an error, no booking stays,
and no byte of one answer shows up in another.
"""

import asyncio

import pytest

from loadtest import sdks
from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import CHAT, DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker, Script, answer_ok, hang, says
from tests.support.blackbox.strict_client import Answer, Client, Cut
from tests.support.patience import patience, until

# client disconnects ------------------------------------------------------------------------------


async def leave(client: Client, how: str) -> None:
    if how == "closes":
        await client.close()
    elif how == "resets":
        client.reset()
    else:
        client.half_close()


LEAVINGS = ["closes", "resets", "half-closes"]


@pytest.mark.parametrize("how", LEAVINGS)
@pytest.mark.parametrize("when", ["before the head", "after the head", "in mid-stream", "in mid-body"])
async def test_a_client_that_disconnects_aborts_its_request(bench: Bench, how: str, when: str) -> None:
    begun = {
        "before the head": b"",
        "after the head": SSE_HEAD,
        "in mid-stream": SSE_HEAD + chunked(event("a"), end=False),
        "in mid-body": wire(200, b"", (b"Content-Length", b"1000"), length=False) + b"{",
    }[when]

    async def script(call: Call) -> None:
        await call.send(begun)
        await hang(call)

    worker = await bench.worker(script=script)
    left_before = await bench.gateway.total("kvgate_client_disconnects_total")
    client = await bench.client()
    await client.send(post(completion()))
    call = await worker.called()
    assert await bench.gateway.total("kvgate_worker_requests_in_flight") == 1
    if begun:
        await client.head()
    if when == "in mid-stream":
        assert await client.event() == event("a")
    await leave(client, how)
    async with asyncio.timeout(patience(20)):
        await call.gone.wait()
    await bench.nothing_in_flight()
    assert await bench.gateway.total("kvgate_client_disconnects_total") == left_before + 1
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0
    assert len(worker.calls) == 1, "a request without its client was sent again"


async def test_a_client_that_disconnects_aborts_its_queued_requests(bench: Bench) -> None:
    worker = await bench.worker(script=hang)
    client = await bench.client()
    await client.send(post(completion("1")) + post(completion("2")) + post(completion("3")))
    call = await worker.called()
    client.reset()
    async with asyncio.timeout(patience(20)):
        await call.gone.wait()
    await bench.nothing_in_flight()
    assert [call.body for call in worker.calls] == [completion("1")]


async def test_a_client_that_disconnects_does_not_affect_others(bench: Bench) -> None:
    may_answer = asyncio.Event()

    async def script(call: Call) -> None:
        await may_answer.wait()
        await call.send(wire(200, call.body))

    worker = await bench.worker(script=script)
    clients = [await bench.client() for _ in range(6)]
    for i, client in enumerate(clients):
        await client.send(post(completion(str(i))))
    await worker.called(6)
    by_body = {call.body: call for call in worker.calls}
    for i in (1, 4):
        clients[i].reset()
    for i in (1, 4):
        async with asyncio.timeout(patience(20)):
            await by_body[completion(str(i))].gone.wait()
    assert await bench.gateway.total("kvgate_worker_requests_in_flight") == 4
    may_answer.set()
    for i in (0, 2, 3, 5):
        assert (await clients[i].answer()).body == completion(str(i))


# worker dies before its answer -------------------------------------------------------------------


async def _close(call: Call) -> None:
    call.close()


async def _reset(call: Call) -> None:
    call.reset()


def dies_after(data: bytes, *, by_reset: bool = False) -> Script:
    async def script(call: Call) -> None:
        await call.send(data)
        if by_reset:
            call.reset()
        else:
            call.close()

    return script


NO_ANSWERS: dict[str, Script] = {
    "close": _close,
    "reset": _reset,
    "in the status line": dies_after(b"HTTP/1.1 20"),
    "in the head": dies_after(b"HTTP/1.1 200 OK\r\nContent-Type: text/ev"),
    "before the head's end": dies_after(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"),
    "after an interim answer": dies_after(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "garbage": dies_after(b"\x00\x01\x02 nonsense\r\n\r\n"),
    "garbage, left open": says(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "two lengths": says(wire(200, b"{}", (b"Content-Length", b"5"))),
    "length and chunked": says(wire(200, b"0\r\n\r\n", (b"Transfer-Encoding", b"chunked"))),
    "bad length": says(wire(200, b"", (b"Content-Length", b"-1"), length=False)),
    "switching protocols": says(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dies", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_a_failed_request_is_answered_by_the_other_worker(
    bench: Bench, dies: Script, stream: bool
) -> None:
    """The worker that is tried first fails; the client notices nothing."""
    calls: list[Call] = []
    good = SSE_HEAD + chunked(event("a"), DONE) if stream else wire(200, b'{"ok":1}')

    async def script(call: Call) -> None:
        calls.append(call)
        await (dies(call) if len(calls) == 1 else call.send(good))

    workers = [await bench.worker(script=script), await bench.worker(script=script)]
    before = await bench.gateway.total("kvgate_retries_total")
    failed = await bench.gateway.total("kvgate_worker_failed_requests_total")
    body = completion("identical \u00e9", stream=stream)
    answer = await bench.ask(post(body, (b"X-Request-Id", b"same")))
    assert answer.status == 200
    assert answer.body == (event("a") + DONE if stream else b'{"ok":1}')
    assert [call.wish for call in calls] == [body, body]
    assert answer.value(b"x-request-id") == b"same"
    assert len({call.value(b"x-request-id") for call in calls} - {b"same"}) == 2, "one for each attempt"
    assert [len(worker.calls) for worker in workers] == [1, 1]
    assert await bench.gateway.total("kvgate_retries_total") == before + 1
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == failed + 1


async def test_a_worker_that_refuses_connections_is_skipped(bench: Bench) -> None:
    alive, dead = await bench.worker(), await bench.worker()
    await dead.die()
    bodies = [completion(str(i)) for i in range(6)]
    answers = await asyncio.gather(*(bench.ask(post(body)) for body in bodies))
    assert {answer.status for answer in answers} == {200}
    assert sorted(call.body for call in alive.calls) == sorted(bodies)
    await until(lambda: _is_down(bench, dead), "the dead worker is known to be down")
    await dead.start()  # on the same port
    await until(lambda: bench.gateway.is_up(dead), "the worker is known to be back")


async def _is_down(bench: Bench, worker: FakeWorker) -> bool:
    return not await bench.gateway.is_up(worker)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_resting_connection_closed_by_the_worker_costs_nothing(bench: Bench, how: str) -> None:
    worker = await bench.worker()
    client = await bench.client()
    retries = await bench.gateway.total("kvgate_retries_total")
    for _ in range(5):
        assert (await client.ask(post(completion()))).status == 200
        for link in worker.forwarded_links():
            link.close() if how == "close" else link.reset()
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0
    assert await bench.gateway.total("kvgate_retries_total") == retries


async def test_a_connection_that_closes_under_the_next_request_costs_nothing(bench: Bench) -> None:
    """Close at uvicorn's keep-alive limit: the request crosses the close on its way."""

    async def script(call: Call) -> None:
        if call.link.num_calls > 1:
            call.close()
        else:
            await call.send(wire(200, call.body))

    worker = await bench.worker(script=script)
    client = await bench.client()
    retries = await bench.gateway.total("kvgate_retries_total")
    for i in range(4):
        assert (await client.ask(post(completion(str(i))))).body == completion(str(i))
    sent = [call.body for call in worker.calls]
    assert sent == [completion(n) for n in "0112233"]  # the first of each pair met the close
    ids = [call.value(b"x-request-id") for call in worker.calls]
    assert len(set(ids)) == len(ids), "the worker may still have the first of a pair"
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 0
    assert await bench.gateway.total("kvgate_retries_total") == retries


async def test_with_all_workers_dead_the_client_gets_503(bench: Bench) -> None:
    for _ in range(2):
        worker = await bench.worker()
        await worker.die()
    answer = await bench.ask(post(completion(stream=True), (b"X-Request-Id", b"mine")))
    assert answer.status in (502, 503)
    assert answer.error["type"] == "server_error"
    assert answer.value(b"x-request-id") == b"mine"


async def test_with_all_workers_dying_the_client_gets_502(bench: Bench) -> None:
    workers = [await bench.worker(script=_reset) for _ in range(2)]
    client = await bench.client()
    answer = await client.ask(post(completion()))
    assert answer.status == 502
    assert answer.error["code"] == "worker_failed"
    assert [len(worker.calls) for worker in workers] == [1, 1]
    for worker in workers:
        worker.script = answer_ok
    assert (await client.ask(post(completion()))).status == 200  # on the same connection


async def test_a_request_is_tried_on_a_bounded_number_of_workers(bench: Bench) -> None:
    workers = [await bench.worker(script=_reset) for _ in range(5)]
    assert (await bench.ask(post(completion()))).status == 502
    assert sum(len(worker.calls) for worker in workers) == 2


@pytest.mark.parametrize("others", [0, 1], ids=["the last worker", "others left"])
async def test_a_worker_is_dropped_under_its_request_and_then_dies(bench: Bench, others: int) -> None:
    """The model has no other worker: the client must get an error all the same."""
    worker = await bench.worker("gone", script=hang)
    for _ in range(others):
        await bench.worker("other")
    client = await bench.client()
    await client.send(post(completion(model="gone")))
    call = await worker.called()
    await bench.gateway.drop(worker)
    call.reset()
    answer = await client.answer()
    assert answer.status == 502
    assert answer.error["code"] == "worker_failed"


async def test_a_dropped_worker_finishes_its_stream(bench: Bench) -> None:
    """A dropped worker gets no new requests and finishes its own."""
    may_end = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("a"), end=False))
        await may_end.wait()
        await call.send(chunked(event("b"), DONE))

    worker = await bench.worker(script=script)
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.event() == event("a")
    await bench.gateway.drop(worker)
    assert (await bench.ask(post(completion()))).status == 503
    may_end.set()
    assert [await client.event(), await client.event()] == [event("b"), DONE]
    assert await client.piece() == b""


# worker dies during its answer -------------------------------------------------------------------

EVENTS = [event("a"), event("b \u00e9"), event("c")]
DEATHS = {
    "between events": chunked(*EVENTS, end=False),
    "in mid-event": chunked(*EVENTS, event("lost")[:20], end=False),
    "in an event over chunks": chunked(*EVENTS, event("lost")[:9], event("lost")[9:-1], end=False),
    "in mid-chunk": chunked(*EVENTS, end=False) + b"50\r\n" + event("lost")[:20],
    "in a chunk's size": chunked(*EVENTS, end=False) + b"5",
    "before the last chunk": chunked(b"".join(EVENTS), end=False) + b"0\r\n",
    "a broken chunk": chunked(*EVENTS, end=False) + b"zz\r\n" + event("lost"),
    "events and a broken chunk": chunked(b"".join(EVENTS), event("l")[:9], end=False) + b"\r\n\r\n",
}


@pytest.mark.parametrize("by_reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("data", DEATHS.values(), ids=DEATHS)
async def test_a_stream_that_dies_ends_with_an_error_event(bench: Bench, data: bytes, by_reset: bool) -> None:
    may_die = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(SSE_HEAD + data)
        await may_die.wait()
        await (_reset if by_reset else _close)(call)

    workers = [await bench.worker(script=script), await bench.worker(script=script)]
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    head = await client.head()
    assert head.status == 200
    assert b"".join([await client.event() for _ in EVENTS]) == b"".join(EVENTS)
    may_die.set()
    await _ends_with_error(client)
    assert (await client.ask(post(b"{"))).status == 400  # the connection is still usable
    assert sum(len(worker.calls) for worker in workers) == 1
    assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 1


async def _ends_with_error(client: Client) -> None:
    last = await client.event()
    assert last.startswith(b"data: {"), last
    error = Answer(200, [(b"content-type", b"application/json")], last[6:]).error
    assert (error["type"], error["code"]) == ("server_error", "worker_failed")
    assert await client.piece() == b""


async def test_a_stream_with_a_length_that_dies_ends_within_its_framing(bench: Bench) -> None:
    """An error event must fit the framing that the client got."""
    head = (b"Content-Type", b"text/event-stream"), (b"Content-Length", b"10000")
    begun = wire(200, EVENTS[0], *head, length=False)
    await bench.worker(script=dies_after(begun + EVENTS[1][:10]))
    client = await bench.client()
    await client.send(post(completion(stream=True)))
    await client.head()
    assert await client.event() == EVENTS[0]
    await _ends_with_error(client)
    assert (await client.ask(post(b"{"))).status == 400


async def test_an_overlong_event_that_dies_is_cut(bench: Bench) -> None:
    """Part of the event has been forwarded, so nothing can follow it: the client must see the cut."""
    begun = b"data: " + b"x" * (3 << 20)
    await bench.worker(script=dies_after(SSE_HEAD + chunked(EVENTS[0], begun, end=False)))
    client = await bench.client()
    with pytest.raises(Cut) as cut:
        await client.ask(post(completion(stream=True)))
    assert cut.value.body.startswith(EVENTS[0])
    assert b"error" not in cut.value.body
    assert DONE not in cut.value.body


async def test_the_openai_client_raises_for_a_stream_that_dies(bench: Bench) -> None:
    chunk = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}'
    delta = '{"index":0,"delta":{"content":"%s"},"finish_reason":null}'
    events = [f"data: {chunk % (delta % text)}\n\n".encode() for text in ("Hello", " world")]
    await bench.worker(script=dies_after(SSE_HEAD + chunked(*events, events[0][:30], end=False)))
    seen = []
    async with sdks.openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{bench.gateway.port}/v1", api_key="k", max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(sdks.openai.APIError, match="died"):
            async for part in stream:
                seen.append(part.choices[0].delta.content)
    assert seen == ["Hello", " world"]


async def test_the_openai_client_gets_typed_errors_and_answers(bench: Bench) -> None:
    whole = (
        b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}]}'
    )
    worker = await bench.worker(script=says(wire(200, whole, (b"Content-Type", b"application/json"))))
    messages = [{"role": "user", "content": "hi"}]
    async with sdks.openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{bench.gateway.port}/v1", api_key="sk-7", max_retries=0
    ) as client:
        answer = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "Hello"
        assert worker.calls[0].value(b"authorization") == b"Bearer sk-7"
        assert [model.id async for model in client.models.list()] == ["m"]
        with pytest.raises(sdks.openai.NotFoundError) as caught:
            await client.completions.create(model="missing", prompt="hi")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(sdks.openai.BadRequestError):
            await client.completions.create(model="m", prompt={"a": 1})  # type: ignore[arg-type]
        await bench.gateway.drop(worker)
        with pytest.raises(sdks.openai.InternalServerError):
            await client.completions.create(model="m", prompt="hi")


BODIES = {
    "length": wire(200, b"", (b"Content-Length", b"1000"), length=False) + b'{"a":',
    "chunked": wire(200, b"", (b"Transfer-Encoding", b"chunked"), length=False) + b'5\r\n{"a":',
    "an error": wire(500, b"", (b"Content-Length", b"1000"), length=False) + b'{"a":',
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("by_reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("data", BODIES.values(), ids=BODIES)
async def test_a_body_that_dies_is_cut(bench: Bench, data: bytes, by_reset: bool, version: str) -> None:
    """A partial answer is not retried.

    In HTTP/1.0 an end without a length would pass for the whole body, so the cut must be a reset.
    """
    worker = await bench.worker(script=dies_after(data, by_reset=by_reset))
    client = await bench.client()
    with pytest.raises(Cut) as cut:
        await client.ask(post(completion(), version=version))
    assert cut.value.body in (b'{"a":', b"")  # a reset may overtake it
    assert len(worker.calls) == 1


# separation of answers ---------------------------------------------------------------------------

SPLIT = wire(200, b"INJECTED", (b"X-Injected", b"1"))


@pytest.mark.parametrize(
    "behind",
    [
        SPLIT,
        SPLIT * 3,
        b"\r\n\r\n" + SPLIT,
        b"garbage",
        b"\x00",
        SPLIT[:10],
        b"0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + SPLIT,
    ],
    ids=["an answer", "three", "blank lines", "garbage", "NUL", "part of one", "chunk end", "interim"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "while it rests"])
async def test_bytes_behind_an_answer_reach_no_client(bench: Bench, behind: bytes, is_late: bool) -> None:
    first_is_answered = asyncio.Event()

    async def script(call: Call) -> None:
        if call.body != completion("bad"):
            return await call.send(wire(200, call.body))
        if is_late:
            await call.send(wire(200, b"own"))
            await first_is_answered.wait()
            await call.send(behind)
        else:
            await call.send(wire(200, b"own") + behind)
        return None

    worker = await bench.worker(script=script)
    first, second = await bench.client(), await bench.client()
    await first.send(post(completion("bad")))
    assert (await first.answer()).body == b"own"
    first_is_answered.set()
    if is_late:
        async with asyncio.timeout(patience(20)):
            await worker.calls[0].gone.wait()  # the gateway closes a connection with surplus bytes
    bodies = [completion(str(i)) for i in range(3)]
    for client in (first, second):
        await client.send(b"".join(map(post, bodies)))
    for client in (first, second):
        for body in bodies:
            answer = await client.answer()
            assert (answer.status, answer.body, answer.values(b"x-injected")) == (200, body, [])
    links = [call.link for call in worker.calls]
    assert links[0] not in links[1:], "a connection that cannot be trusted was used again"


async def test_answers_of_many_clients_on_few_connections_are_not_mixed(bench: Bench) -> None:
    async def script(call: Call) -> None:
        if len(worker.calls) % 3 == 0:
            await call.send(wire(200, call.body) + SPLIT)
        elif len(worker.calls) % 3 == 1:
            await call.send(SSE_HEAD + chunked(event("a"), call.body + b"\n\n"))
        else:
            await call.send(wire(200, call.body))

    worker = await bench.worker(script=script)

    async def one_client(n: int) -> None:
        client = await bench.client()
        bodies = [completion(f"{n}-{i}") for i in range(20)]
        await client.send(b"".join(map(post, bodies)))
        for body in bodies:
            answer = await client.answer()
            assert answer.status == 200
            assert answer.body in (body, event("a") + body + b"\n\n")

    await asyncio.gather(*(one_client(n) for n in range(8)))
    assert len(worker.calls) == 160


async def test_a_header_cannot_be_smuggled_through_an_answer(bench: Bench) -> None:
    await bench.worker(script=says(wire(200, b"{}", (b"X-A", b"1\rX-Injected: 1"))))
    answer = await bench.ask(post(completion(), target=CHAT).replace(b'"prompt"', b'"messages":[],"p"'))
    assert not answer.values(b"x-injected")
    assert b"\r" not in b"".join(value for _, value in answer.headers)
