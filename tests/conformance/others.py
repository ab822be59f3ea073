"""The same bytes as uvicorn and nginx read them: uvicorn here and now, nginx as it was recorded.

`python -m tests.conformance.others` asks the installed nginx and rewrites `nginx.json`.
"""

import asyncio
import hashlib
import json
import logging
import re
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from loadtest.ports import free_port
from tests.conformance.cases import CASES, Case

RECORD = Path(__file__).with_name("nginx.json")
QUIET_S = 0.4
"""Silence after which nginx's answer is complete; it runs on this machine."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The statuses that a server answered, whether the connection is open after them, and the bodies of
    the requests that it handed on whole, to its application or its worker, each behind its target."""

    answers: tuple[int, ...]
    is_open: bool
    handed: tuple[str, ...]


def digest(case: Case) -> str:
    return hashlib.sha256(case.data).hexdigest()[:16]


def handed(target: bytes, body: bytes) -> str:
    return f"{target.decode('latin-1')} {body.decode('latin-1')}"


def statuses(out: bytes) -> tuple[int, ...]:
    """Statuses of answers; bodies hold no status line."""
    return tuple(int(found) for found in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", out, re.MULTILINE))


# uvicorn -----------------------------------------------------------------------------------------


class _Transport:
    def __init__(self) -> None:
        self.out = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.out += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def ask_uvicorn(data: bytes) -> Reading:
    """Run uvicorn's protocol class on a fake transport, before an application that answers 200 to all."""
    seen: list[str] = []

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                query = b"?" + scope["query_string"] if scope["query_string"] else b""
                seen.append(handed(scope["raw_path"] + query, body))
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"ok\n"})
                return

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(cast(Any, app), http="httptools", ws="none", lifespan="off", log_config=None)
    protocol = HttpToolsProtocol(config, ServerState(), {})
    transport = _Transport()
    protocol.connection_made(cast(asyncio.Transport, transport))
    protocol.data_received(data)
    before, quiet = b"", 0
    while quiet < 20:
        await asyncio.sleep(0)
        quiet = quiet + 1 if transport.out == before else 0
        before = transport.out
    reading = Reading(statuses(transport.out), not transport.is_closed, tuple(seen))
    protocol.connection_lost(None)
    await asyncio.gather(*protocol.tasks)
    return reading


# nginx -------------------------------------------------------------------------------------------


def recorded() -> tuple[str, dict[str, tuple[str, Reading]]]:
    """Version of nginx; and by name of the case, its bytes' digest and the reading."""
    record = json.loads(RECORD.read_text())
    readings = {
        name: (
            row["sent"],
            Reading(tuple(row["answers"]), row["is_open"], tuple(row["handed"])),
        )
        for name, row in record["cases"].items()
    }
    return record["version"], readings


_CONFIG = """
daemon off; master_process off; worker_processes 1; pid {dir}/pid; error_log {dir}/log crit;
events {{ }}
http {{
  access_log off; client_max_body_size 64m;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream worker {{ server 127.0.0.1:{worker_port}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port}; large_client_header_buffers 4 64k;
    location / {{ proxy_pass http://worker; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


class _Worker(asyncio.Protocol):
    """Worker that answers 200 to nginx, which always frames its requests by a length."""

    seen: list[str]

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            lines, _, rest = self._buffer.partition(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: *(\d+)", lines, re.IGNORECASE)
            num_bytes = int(length[1]) if length else 0
            assert b"transfer-encoding" not in lines.lower()
            if len(rest) < num_bytes:
                return
            self.seen.append(handed(lines.split(b" ")[1], rest[:num_bytes]))
            self._buffer = rest[num_bytes:]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")


async def _ask_nginx(port: int, data: bytes, seen: list[str]) -> Reading:
    seen.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    out, is_open = b"", True
    try:
        while is_open:
            async with asyncio.timeout(QUIET_S):
                got = await reader.read(1 << 16)
            out += got
            is_open = bool(got)
    except TimeoutError:
        pass
    except ConnectionError:
        is_open = False
    writer.close()
    return Reading(statuses(out), is_open, tuple(seen))


def _written(path: Path, **values: object) -> str:
    path.write_text(_CONFIG.format(**values))
    return str(path)


@asynccontextmanager
async def _nginx(seen: list[str]) -> Any:
    loop = asyncio.get_running_loop()
    worker = type("Worker", (_Worker,), {"seen": seen})
    server = await loop.create_server(worker, "127.0.0.1", 0)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        worker_port = server.sockets[0].getsockname()[1]
        config = _written(Path(folder, "nginx.conf"), dir=folder, port=port, worker_port=worker_port)
        process = await asyncio.create_subprocess_exec("nginx", "-p", folder, "-c", config)
        try:
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
            yield port
        finally:
            process.terminate()
            await process.wait()
            server.close()


async def record() -> None:
    shown = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr  # noqa: ASYNC221
    seen: list[str] = []
    cases = {}
    async with _nginx(seen) as port:
        for case in CASES:
            reading = await _ask_nginx(port, case.data, seen)
            cases[case.name] = {"sent": digest(case), **asdict(reading)}
    made = {"version": shown.strip().rpartition("/")[2], "cases": cases}
    RECORD.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
