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
ENDPOINT = re.compile(
    r"        - endpoint: \{address: \{socket_address: \{address: 127\.0\.0\.1, port_value: 800\d\}\}\}\n"
)


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
    flags: Sequence[str] = field(default_factory=list)

    async def ask(self, data: bytes) -> Answer:
        client = await Client.open(self.port)
        try:
            return await client.ask(data)
        finally:
            await client.close()

    async def in_flight(self) -> int:
        return await asyncio.to_thread(self.gateway.in_flight)


def configured(name: str, port: int, epp_port: int, workers: Sequence[str]) -> str:
    """A shipped configuration with other ports, and these workers."""
    text = (FOLDER / name).read_text()
    text = text.replace("port_value: 8080", f"port_value: {port}").replace(
        "port_value: 9002", f"port_value: {epp_port}"
    )
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
) -> AsyncIterator[Setup]:
    """Workers, a gateway with the picker, and Envoy. `edits` replace texts of its configuration; Envoy knows
    the last `num_known` workers only, where that is given."""
    workers = [await EnvoyWorker().start() for _ in range(num_workers)]
    port, epp_port = free_port(), free_port()
    config = configured(name, port, epp_port, [worker.url for worker in workers][-(num_known or 0) :])
    for edit in edits:
        assert edit[0] in config
        config = config.replace(*edit)
    given = [flag for worker in workers for flag in ("--worker", worker.url)]
    gateway = GatewayProcess(*given, "--epp-port", str(epp_port), *flags, expect_errors=True)
    await asyncio.to_thread(gateway.__enter__)
    try:
        async with envoy(config, port, binary) as log:
            setup = Setup(port, gateway, workers, epp_port, log)
            await until(lambda: _is_picking(setup), "Envoy believes the picker healthy")
            for worker in workers:
                worker.calls.clear()
            yield setup
    finally:
        await asyncio.to_thread(gateway.__exit__, None, None, None)
        for worker in workers:
            await worker.die()


async def _is_picking(setup: Setup) -> bool:
    """True once the picker answers by itself: it knows the models, and Envoy asks it."""
    answer = await setup.ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    return answer.status == 200 and b'"kvgate"' in answer.body


PICKED = re.compile(r'kvgate_epp_events_total\{kind="([a-z_]+)"\} (\d+)')


def picked_events(metrics: str) -> dict[str, int]:
    return {kind: int(num) for kind, num in PICKED.findall(metrics)}
