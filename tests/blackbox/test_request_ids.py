"""Ids of requests are keys of engines' own tables: a worker gets the gateway's, a client sees its own."""

import json
import re

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.scripted_worker import Call
from tests.support.patience import until

SAME = (b"X-Request-Id", b"same")
OURS = re.compile(rb"[0-9a-f-]{24,40}")


async def echoes(call: Call) -> None:
    """Answer as vLLM with --enable-request-id-headers does."""
    name = call.value(b"x-request-id") or b""
    await call.send(wire(200, call.body, (b"X-Request-Id", name), (b"Content-Type", b"application/json")))


async def test_equal_ids_at_once_reach_the_worker_as_different_ones(bench: Bench) -> None:
    worker = await bench.worker(script=echoes)
    clients = [await bench.client() for _ in range(3)]
    for client in clients:
        await client.send(post(completion(rid="same", request_id="same"), SAME))
    for client in clients:
        answer = await client.answer()
        assert (answer.status, answer.value(b"x-request-id")) == (200, b"same")
        assert answer.json == json.loads(completion()), "both fields are taken out"
    ids = {call.value(b"x-request-id") for call in worker.calls}
    assert len(ids) == 3 and all(OURS.fullmatch(name or b"") for name in ids)


@pytest.mark.parametrize("client_id", [b"i" * 60_000, b"a b/\xe9%00{}", b"-"])
async def test_any_id_of_a_client_becomes_a_short_one_of_one_alphabet(bench: Bench, client_id: bytes) -> None:
    worker = await bench.worker(script=echoes)
    answer = await bench.ask(post(completion(stream=True), (b"X-Request-Id", client_id)))
    assert (answer.status, answer.value(b"x-request-id")) == (200, client_id)
    assert OURS.fullmatch(worker.calls[0].value(b"x-request-id") or b"")


async def test_a_long_session_id_becomes_a_short_one_and_a_short_one_stays(bench: Bench) -> None:
    """vLLM repeats it in each KV event of the request."""
    worker = await bench.worker(script=echoes)
    for given in (b"s" * 60_000, b"s" * 60_000, b"t" * 60_000, b"s" * 64):
        assert (await bench.ask(post(completion(), (b"X-Session-Id", given)))).status == 200
    long, again, other, short = [call.value(b"x-session-id") or b"" for call in worker.calls]
    assert long == again != other and {len(long), len(other)} == {32}
    assert short == b"s" * 64


BODIES = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/generate": {"text": "x"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_no_route_passes_a_clients_name_of_a_request_on(path: str, is_large: bool) -> None:
    """A large body is not decoded as a small one is."""
    async with running("--route", "/generate") as bench:
        worker = await bench.worker(script=echoes)
        more = {"metadata": {"pad": "p" * 300_000}} if is_large else {}
        names = {"rid": ["a", "b"], "request_id": "same", "session_id": 7, "id_slot": 0}
        body = {"model": "m", **BODIES[path], **more}
        answer = await bench.ask(post(json.dumps(body | names).encode(), SAME, target=path))
        assert answer.status == 200
        (call,) = worker.calls
        assert json.loads(call.body) == body
        assert call.value(b"x-request-id") != b"same" and OURS.fullmatch(call.value(b"x-request-id") or b"")


async def test_the_clients_id_is_in_the_answer_the_log_and_the_decision() -> None:
    """The worker's id is the decision's: the log of either leads to the other's."""
    async with running("--log-requests", "--log-format", "json") as bench:
        worker = await bench.worker(script=echoes)
        given = await bench.ask(post(completion(), (b"X-Request-Id", b"mine-7")))
        made = await bench.ask(post(completion()))
        assert given.value(b"x-request-id") == b"mine-7"
        client_ids = ["mine-7", (made.value(b"x-request-id") or b"").decode()]
        assert re.fullmatch("[0-9a-f]{32}", client_ids[1]), "one is made for a client that has none"
        worker_ids = [(call.value(b"x-request-id") or b"").decode() for call in worker.calls]
        for client_id, worker_id in zip(client_ids, worker_ids, strict=True):
            record = (await bench.gateway.admin("GET", f"/admin/decisions/{worker_id}")).json
            assert (record["id"], record["request_id"]) == (worker_id, client_id)

        def lines() -> list[tuple[str, str]]:
            found = [json.loads(line) for line in bench.gateway.log if '"kvgate.requests"' in line]
            return [(line["request_id"], line["decision_id"]) for line in found]

        await until(lambda: len(lines()) == 2, "both are logged")
        assert sorted(lines()) == sorted(zip(client_ids, worker_ids, strict=True))


async def test_an_answer_of_the_server_itself_has_the_id_of_its_log_line() -> None:
    flags = ("--log-requests", "--log-format", "json", "--max-body-bytes", "1000")
    async with running(*flags) as bench:
        await bench.worker()
        large = await bench.ask(post(completion("x" * 2000)))
        malformed = await bench.ask(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n")
        for answer, status in ((large, 413), (malformed, 400)):
            name = (answer.value(b"x-request-id") or b"").decode()
            assert answer.status == status and name
            await bench.gateway.logged(f'"request_id": ?"{name}"')
