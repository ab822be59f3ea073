"""Worker that agrees to each WebSocket and drops what comes, in a process of its own:
`python -m loadtest.agreeing_worker`. Its first line of output is its URL; it ends with its input."""

import asyncio
import contextlib
import json
import sys

HOST, MODEL = "127.0.0.1", "ws"
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
AGREED = b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: A\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"\r\nupgrade:" in head:
                writer.write(AGREED)
                while await reader.read(1 << 20):
                    pass
                break
            path = head.split(b" ", 2)[1]
            status = b"200 OK" if path in (b"/health", b"/v1/models") else b"404 Not Found"
            body = MODELS if path == b"/v1/models" else b"{}"
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (status, len(body), body)
            )
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, HOST, 0)
    print(f"http://{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
