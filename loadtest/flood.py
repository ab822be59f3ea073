"""Worker that streams as fast as its responses are read, without end: `python -m loadtest.flood`.

For clients that do not read: unread data fills the sockets on the way, and then the gateway must stop reading
here. Its first line of output is "ready PORT".
"""

import asyncio
import json
import sys

import uvloop

from gateway.runtime.tasks import stop_event

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
METRICS = b"""\
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="65536"} 1
"""
ANSWERS = {
    b"/health": b"",
    b"/metrics": METRICS,
    b"/v1/models": json.dumps({"object": "list", "data": [{"id": "m", "root": "m"}]}).encode(),
    b"/version": b'{"version":"0.23.0"}',
}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 900 + b'"}}]}\n\n'
PIECE = (b"%x\r\n%b\r\n" % (len(EVENT), EVENT)) * 64


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path = head.split(b" ", 2)[:2]
            if method == b"POST":
                await flood(writer)
            body = ANSWERS.get(path)
            status = b"404 Not Found" if body is None else b"200 OK"
            body = body or b""
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(PIECE)
        await writer.drain()


async def main() -> None:
    """Run until SIGTERM."""
    stop = stop_event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
