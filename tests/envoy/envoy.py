"""A real Envoy with a configuration of deploy/envoy, on free ports, before a gateway's picker."""

import asyncio
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.ports import free_port
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.strict_client import Answer, Client
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import until

ENVOY = os.environ.get("ENVOY", ".venv-envoy/bin/envoy")
FOLDER = Path("deploy/envoy")
PICKER = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9002}}}}"
ENDPOINT = re.compile(
    r"        - endpoint: \{address: \{socket_address: \{address: 127\.0\.0\.1, port_value: 800\d\}\}\}\n"
)

WEBSOCKETS = (
    "stat_prefix: llm\n",
    "stat_prefix: llm\n          upgrade_configs: [{upgrade_type: websocket}]\n",
)
OFFER = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def switching(call: Call) -> None:
    """A worker that leaves HTTP, and answers one message."""
    await call.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert await call.beyond(4) == b"ping"
    await call.send(b"pong")
    await call.gone.wait()


class EnvoyWorker(FakeWorker):
    """A worker that knows requests through Envoy by their id: Envoy adds no Via."""

    async def serve(self, call: Call) -> None:
        if call.values(b"x-envoy-expected-rq-timeout-ms") or call.values(b"x-request-id"):
            self.calls.append(call)
            await self.script(call)
        else:
            await super().serve(call)


@dataclass
class Setup:
    """Clients' port at Envoy, the gateway with the picker, and its workers."""

    port: int
    gateway: GatewayProcess
    workers: list[EnvoyWorker]
    epp_port: int
    log: Path
    others: list[GatewayProcess] = field(default_factory=list)
    """Gateways with more pickers."""

    async def ask(self, data: bytes) -> Answer:
        client = await Client.open(self.port)
        try:
            return await client.ask(data)
        finally:
            await client.close()

    async def in_flight(self) -> int:
        return await asyncio.to_thread(self.gateway.in_flight)


def configured(name: str, port: int, epp_ports: Sequence[int], workers: Sequence[str]) -> str:
    """A shipped configuration with other ports, these pickers and workers."""
    text = (FOLDER / name).read_text().replace("port_value: 8080", f"port_value: {port}")
    assert PICKER in text
    text = text.replace(PICKER, ", ".join(PICKER.replace("9002", str(each)) for each in epp_ports))
    mine = "".join(
        "        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: PORT}}}\n".replace(
            "PORT", worker.rpartition(":")[2]
        )
        for worker in workers
    )
    first = ENDPOINT.search(text)
    if first is not None:
        start = first.start()
        text = text[:start] + mine + ENDPOINT.sub("", text[start:])
    return text


@asynccontextmanager
async def envoy(config: str, port: int, binary: str = ENVOY) -> AsyncIterator[Path]:
    """Envoy with this configuration, until the end; yields its log."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "envoy.yaml", Path(folder) / "log"
        path.write_text(config)
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                binary, "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning",
                stdout=output, stderr=output,
            )  # fmt: skip
            try:

                def listens() -> bool:
                    assert process.returncode is None, log.read_text()
                    with socket.socket() as probe:
                        return probe.connect_ex(("127.0.0.1", port)) == 0

                await until(listens, "Envoy listens")
                yield log
            finally:
                if process.returncode is None:
                    process.terminate()
                await process.wait()


@asynccontextmanager
async def behind_envoy(
    num_workers: int,
    *flags: str,
    name: str = "envoy.yaml",
    edits: Sequence[tuple[str, str]] = (),
    num_known: int | None = None,
    binary: str = ENVOY,
    num_pickers: int = 1,
) -> AsyncIterator[Setup]:
    """Workers, gateways with a picker each, and Envoy. `edits` replace texts of its configuration; Envoy
    knows the last `num_known` workers only, where that is given."""
    workers = [await EnvoyWorker().start() for _ in range(num_workers)]
    port, epp_ports = free_port(), [free_port() for _ in range(num_pickers)]
    config = configured(name, port, epp_ports, [worker.url for worker in workers][-(num_known or 0) :])
    for edit in edits:
        assert edit[0] in config
        config = config.replace(*edit)
    given = [flag for worker in workers for flag in ("--worker", worker.url)]
    gateways = [
        GatewayProcess(*given, "--epp-port", str(each), *flags, expect_errors=True) for each in epp_ports
    ]
    try:
        for gateway in gateways:
            await asyncio.to_thread(gateway.__enter__)
        async with envoy(config, port, binary) as log:
            setup = Setup(port, gateways[0], workers, epp_ports[0], log, gateways[1:])
            await until(lambda: _is_picking(setup), "Envoy believes the picker healthy")
            for worker in workers:
                worker.calls.clear()
            yield setup
    finally:
        for gateway in gateways:
            await asyncio.to_thread(gateway.__exit__, None, None, None)
        for worker in workers:
            await worker.die()


async def _is_picking(setup: Setup) -> bool:
    """True once the picker answers by itself: it knows the models, and Envoy asks it."""
    answer = await setup.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    return answer.status == 200 and b'"kvgate"' in answer.body


def modes(request: str, answer: str) -> list[tuple[str, str]]:
    """Edits of a configuration for these body modes."""
    return [
        ("request_body_mode: FULL_DUPLEX_STREAMED", f"request_body_mode: {request}"),
        ("response_body_mode: FULL_DUPLEX_STREAMED", f"response_body_mode: {answer}"),
    ]


PICKED = re.compile(r'kvgate_epp_events_total\{kind="([a-z_]+)"\} (\d+)')


def picked_events(metrics: str) -> dict[str, int]:
    return {kind: int(num) for kind, num in PICKED.findall(metrics)}
