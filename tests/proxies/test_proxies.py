"""examples/nginx and the blocks of docs/guides/reverse-proxies.md, in the real nginx and HAProxy."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.ports import free_port
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, request
from tests.support.blackbox.scripted_worker import Call
from tests.support.certificates import Authority
from tests.support.patience import patience, until

pytestmark = pytest.mark.proxies

ROOT = Path(os.environ.get("PROXIES", ".cache/proxies")).absolute() / "root"
SITE = Path("examples/nginx/kvgate.conf").read_text()
BLOCKS = Path("docs/guides/reverse-proxies.md").read_text()
LYING = (
    (b"X-Forwarded-For", b"198.51.100.9"),
    (b"Forwarded", b"for=198.51.100.9"),
    (b"X-Real-Ip", b"1.2.3.4"),
)
TRUSTING = ("--trusted-proxies", "127.0.0.1", "--log-requests", "--log-format", "text")


def block(language: str, mark: str) -> str:
    """Block of the page that has this line."""
    found = [each for each in re.findall(rf"```{language}\n(.*?)```", BLOCKS, re.S) if mark in each]
    assert len(found) == 1
    return found[0]


@asynccontextmanager
async def started(command: list[str], port: int) -> AsyncIterator[int]:
    """Proxy that listens there, until the end."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(ROOT / "usr/lib/x86_64-linux-gnu")}
    process = await asyncio.create_subprocess_exec(*command, env=environ)

    def listens() -> bool:
        assert process.returncode is None, f"{command[0]} ended at once"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        await until(listens, f"{command[0]} listens")
        yield port
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def nginx(directory: Path, gateway: int) -> AsyncIterator[int]:
    port = free_port()
    site = SITE.replace("127.0.0.1:8000", f"127.0.0.1:{gateway}")
    paths = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = directory / "nginx.conf"
    conf.write_text(
        f"daemon off;\npid {directory}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}"
        + site.replace("listen 8080", f"listen 127.0.0.1:{port}")
        + "}\n"
    )
    command = [str(ROOT / "usr/sbin/nginx"), "-p", str(directory), "-e", f"{directory}/log", "-c", str(conf)]
    check = await asyncio.create_subprocess_exec(*command, "-t")
    assert await check.wait() == 0
    async with started(command, port):
        yield port


@asynccontextmanager
async def haproxy(directory: Path, gateway: int, mark: str, instead: str = "") -> AsyncIterator[int]:
    port = free_port()
    conf = directory / "haproxy.cfg"
    text = block("haproxy", mark).replace("127.0.0.1:8000", f"127.0.0.1:{gateway}")
    text = text.replace(mark, instead) if instead else text
    conf.write_text(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    async with started([str(ROOT / "usr/sbin/haproxy"), "-f", str(conf)], port):
        yield port


class Streams:
    """Stream with a second event that waits for the test."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.send(SSE_HEAD + chunked(event("one"), end=False))
        await self.may_go_on.wait()
        await call.send(chunked(event("two"), DONE))


CLIENT = "127.0.0.2"
"""Address of clients; the proxies are at 127.0.0.1, and trusted."""


async def ask(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> int:
    """Status of a request that is the last one of its connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(CLIENT, 0), ssl=tls, server_hostname="127.0.0.1" if tls else None
    )
    async with asyncio.timeout(patience(20)):
        writer.write(data)
        answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(answer.split(b" ")[1])


async def check_stream(bench: Bench, port: int, target: str) -> None:
    """Check that the first event arrives before the second one is sent."""
    streams = Streams()
    worker = await bench.worker(script=streams)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(completion(stream=True), target=target))
    async with asyncio.timeout(patience(20)):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"one" in await reader.readuntil(b"one")
        streams.may_go_on.set()
        assert await reader.readuntil(b"[DONE]")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    await bench.gateway.drop(worker)


def check_forwarded(call: Call, scheme: bytes) -> None:
    """Check the headers that the proxy wrote."""
    assert call.value(b"x-forwarded-for") == b"127.0.0.2, 127.0.0.1"
    assert call.value(b"x-forwarded-proto") == scheme
    assert call.value(b"x-forwarded-host") == b"gateway"
    assert (call.values(b"forwarded"), call.values(b"x-real-ip")) == ([], [])


async def test_nginx_passes_streams_and_the_client(tmp_path: Path) -> None:
    async with (
        running("--base-path", "/llm", *TRUSTING) as bench,
        nginx(tmp_path, bench.gateway.port) as port,
    ):
        worker = await bench.worker()
        assert await ask(port, post(completion(), *LYING, target="/llm/v1/completions")) == 200
        check_forwarded(await worker.called(), b"http")
        await bench.gateway.logged(r"from 127\.0\.0\.2$")
        assert await ask(port, request("GET", "/llm/v1/models")) == 200
        await bench.gateway.drop(worker)
        await check_stream(bench, port, "/llm/v1/completions")


async def test_haproxy_passes_streams_and_the_client(tmp_path: Path) -> None:
    async with running(*TRUSTING) as bench:
        worker = await bench.worker()
        async with haproxy(tmp_path, bench.gateway.port, "option forwardfor") as port:
            await until(lambda: _is_ready(port), "its check found us ready")
            assert await ask(port, post(completion(), *LYING)) == 200
            check_forwarded(await worker.called(), b"http")
            await bench.gateway.logged(r"from 127\.0\.0\.2$")
            await bench.gateway.drop(worker)
            await check_stream(bench, port, "/v1/completions")


async def _is_ready(port: int) -> bool:
    return await ask(port, request("GET", "/v1/models")) == 200


@pytest.mark.parametrize("version", ["send-proxy-v2", "send-proxy"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_haproxy_passes_connections_on(tmp_path: Path, version: str, processes: str) -> None:
    """The gateway ends TLS; the PROXY header comes before it."""
    authority = Authority(tmp_path / "ca")
    pair, tls = authority.issue(), authority.context()
    flags = ("--tls-cert-file", pair.cert, "--tls-key-file", pair.key, "--processes", processes)
    async with running(*TRUSTING, "--proxy-protocol", *flags, tls=tls) as bench:
        worker = await bench.worker()
        async with haproxy(tmp_path, bench.gateway.port, "send-proxy-v2", version) as port:
            assert await ask(port, post(completion(), *LYING), tls) == 200
            call = await worker.called()
            assert call.value(b"x-forwarded-for") == CLIENT.encode()
            assert call.value(b"x-forwarded-proto") == b"https"
            await bench.gateway.logged(r"from 127\.0\.0\.2$")
