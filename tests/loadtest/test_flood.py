import asyncio

from loadtest.flood import ANSWERS, EVENT, serve


async def test_the_flooding_worker_answers_probes_and_streams_without_end() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(
        b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\nGET /none HTTP/1.1\r\n\r\nPOST /x HTTP/1.1\r\n\r\n"
    )
    models = ANSWERS[b"/v1/models"]
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and b"content-length: %d" % len(models) in head
    assert await reader.readexactly(len(models)) == models
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
    assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
    for _ in range(200):
        await reader.readuntil(b"\r\n")
        assert await reader.readexactly(len(EVENT) + 2) == EVENT + b"\r\n"
    writer.close()
    server.close()
