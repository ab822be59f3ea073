"""Worker with answers of tiny units, as fast as they are read: `python -m loadtest.outpouring`.

The prompt of a completion names the unit (`UNITS`), its `max_tokens` the number of bytes. The first line of
output is the worker's URL. All other questions get an empty object.
"""

import asyncio
import json
import re
from collections.abc import Mapping

MODEL = "pouring"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
UNITS: Mapping[str, bytes] = {
    "events": b"data: {}\n\n",
    "lines": b"data:\n",
    "usage": b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode(),
    "tokens": b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    "comments": b":\n\n",
    "chunks": b" ",
}
"""Bytes of one event, or for `chunks` of one chunk of the transfer encoding."""
CHUNKED = "chunks"
CARDS = {
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]},
}
BATCH_BYTES = 64 << 10


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            path = head.split(b" ", 2)[1].decode()
            if path == "/v1/completions":
                asked = json.loads(body)
                await pour(writer, asked["prompt"], asked["max_tokens"])
            else:
                data = json.dumps(CARDS.get(path, {})).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def pour(writer: asyncio.StreamWriter, name: str, num_bytes: int) -> None:
    unit = UNITS[name]
    size = len(unit) if name == CHUNKED else BATCH_BYTES // len(unit) * len(unit)
    piece = unit * (size // len(unit))
    batch = b"%x\r\n%b\r\n" % (len(piece), piece) * max(1, BATCH_BYTES // len(piece))
    kind = b"text/event-stream"
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: %b\r\n\r\n" % kind)
    for _ in range(max(1, num_bytes // len(batch))):
        writer.write(batch)
        await writer.drain()
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))


DONE = b"data: [DONE]\n\n"


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
