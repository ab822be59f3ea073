"""Server-sent events: what has changed, until the stream or the gateway ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin.console import event_streams
from gateway.admin.console.event_streams import MAX_STREAMS, STREAMS, add_streams, event_handlers
from tests.support.patience import patience, until


class Source:
    """Answers of a topic, and the questions as they came."""

    def __init__(self) -> None:
        self.body, self.status = '{"n":0}', 200
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        return web.Response(text=self.body, status=self.status, content_type="application/json")


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def client(source: Source, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestClient]:
    monkeypatch.setattr(event_streams, "INTERVAL_S", 0.01)
    monkeypatch.setattr(event_streams, "LEAST_REST", 0.0)
    app = web.Application()
    app.router.add_get("/admin/events", event_handlers({"requests": source, "traffic": source})["events"])
    add_streams(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def line(answer: object, start: bytes) -> bytes:
    async with asyncio.timeout(patience(20)):
        while not (found := await answer.content.readline()).startswith(start):  # type: ignore[attr-defined]
            assert found, "the stream has ended"
    return found


async def test_an_answer_comes_when_it_has_changed(client: TestClient, source: Source) -> None:
    async with client.get("/admin/events?topics=requests") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert await line(answer, b"event: requests") and await line(answer, b"data:") == b'data: {"n":0}\n'
        assert await line(answer, b"event:") == b"event: tick\n"
        assert await line(answer, b"event:") == b"event: tick\n"
        source.body = '{"n":1}'
        await line(answer, b"event: requests")
        assert await line(answer, b"data:") == b'data: {"n":1}\n'
    assert set(source.asked) == {"/admin/requests?limit=200"}


async def test_an_error_is_not_sent(client: TestClient, source: Source) -> None:
    source.status = 503
    async with client.get("/admin/events?topics=requests") as answer:
        assert [await line(answer, b"event:") for _ in range(3)] == [b"event: tick\n"] * 3


@pytest.mark.parametrize("query", ["", "?topics=", "?topics=other", "?topics=requests,other"])
async def test_an_unknown_topic_is_400(client: TestClient, query: str) -> None:
    answer = await client.get(f"/admin/events{query}")
    assert answer.status == 400
    assert "requests, traffic" in (await answer.json())["error"]["message"]


async def test_streams_are_bounded_in_number(client: TestClient) -> None:
    streams = client.server.app[STREAMS]  # type: ignore[attr-defined]
    streams.num_open = MAX_STREAMS
    assert (await client.get("/admin/events?topics=requests")).status == 503
    assert streams.num_open == MAX_STREAMS


async def test_a_stream_ends_after_a_while(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "STREAM_S", 0.05)
    async with client.get("/admin/events?topics=requests,traffic") as answer, asyncio.timeout(patience(20)):
        text = await answer.text()
    assert text.startswith("retry: ") and "event: requests" in text and "event: traffic" in text
    assert client.server.app[STREAMS].num_open == 0  # type: ignore[attr-defined]


async def test_streams_end_when_the_gateway_stops(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "INTERVAL_S", 1000.0)
    async with client.get("/admin/events?topics=requests") as answer:
        await line(answer, b"event: tick")
        await client.server.app.shutdown()  # type: ignore[attr-defined]
        async with asyncio.timeout(patience(20)):
            assert await answer.content.read() in (b"", b"data: {}\n\n", b"\n")


async def test_a_client_that_does_not_read_is_cut(
    client: TestClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "STREAM_S", 0.05)
    monkeypatch.setattr(event_streams, "WRITE_S", 0.05)
    source.body = f'"{"x" * (64 << 20)}"'
    streams = client.server.app[STREAMS]  # type: ignore[attr-defined]
    async with client.get("/admin/events?topics=requests") as answer:
        assert answer.status == 200
        await until(lambda: not streams.num_open)
        with pytest.raises(ClientPayloadError):
            await answer.read()
