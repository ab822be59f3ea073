"""The call that sends a prefix, and the reasons of its failures."""

import asyncio

import pytest
from aiohttp import web

from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.upstream.control_client import ControlSession
from gateway.warming.sender import MAX_ANSWER_BYTES, PrefixSender
from loadtest.ports import free_port
from tests.support.fakes import serve, url_of

pytestmark = pytest.mark.process


class Endpoint:
    """An endpoint that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str | None, str | None, bytes]] = []
        self.status, self.answer, self.waits_s = 200, b"{}", 0.0

    async def post(self, request: web.Request) -> web.Response:
        headers = request.headers
        self.got.append(
            (headers.get("authorization"), headers.get("x-data-parallel-rank"), await request.read())
        )
        await asyncio.sleep(self.waits_s)
        return web.Response(status=self.status, body=self.answer)


async def sent(endpoint: Endpoint, left_s: float = 60.0, **fields: int) -> str | None:
    server = await serve(web.post("/v1/completions", endpoint.post))
    try:
        async with ControlSession() as session:
            worker = Worker(WorkerId("a"), url_of(server), (ServedModel("m", "m"),), **fields)
            return await PrefixSender(session, {"authorization": "Bearer k"}).send(worker, b"[1]", left_s)
    finally:
        await server.close()


async def test_it_goes_with_the_gateways_own_key_and_to_its_rank() -> None:
    endpoint = Endpoint()
    assert await sent(endpoint) is None
    assert await sent(endpoint, dp_rank=1, dp_size=2) is None
    assert endpoint.got == [("Bearer k", None, b"[1]"), ("Bearer k", "1", b"[1]")]


async def test_another_status_and_a_long_answer_are_failures() -> None:
    endpoint = Endpoint()
    endpoint.status = 400
    assert await sent(endpoint) == "answered 400 to a prompt of token ids"
    endpoint.status, endpoint.answer = 200, b" " * (MAX_ANSWER_BYTES + 1)
    assert await sent(endpoint) == "did not answer: the answer is over 1,048,576 bytes"


async def test_the_end_of_its_time_is_no_failure() -> None:
    endpoint = Endpoint()
    endpoint.waits_s = 5.0
    assert await sent(endpoint, left_s=0.05) == ""


async def test_a_worker_that_is_gone_did_not_answer() -> None:
    async with ControlSession() as session:
        worker = Worker(WorkerId("a"), f"http://127.0.0.1:{free_port()}", (ServedModel("m", "m"),))
        why = await PrefixSender(session, {}).send(worker, b"{}", 60.0)
    assert why is not None and why.startswith("did not answer: cannot connect")
