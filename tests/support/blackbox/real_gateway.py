"""Gateway process, driven from an event loop: its ports, flags, signals and log.

Nothing here knows the gateway's code.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.fleet import GATEWAY
from tests.support.blackbox.http1_bytes import Header, request
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.blackbox.strict_client import DEADLINE_S, Answer, Client
from tests.support.gateway_process import split
from tests.support.patience import patience, until

START_S = 60.0
"""Timeout for a process that starts, on an idle machine: it reads files and may compete with many others."""


PATIENT = "KVGATE_TOKENIZER_TIMEOUT_S=600"
"""Flag for tests of a prompt's tokens: a busy machine takes longer for a worker's /tokenize than is usual."""


FAULTS = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|task .* died|Warning")
"""Log lines that a healthy gateway never writes."""


class Gateway:
    """Gateway process, from its first log line to its exit code."""

    def __init__(self, process: asyncio.subprocess.Process, flags: Sequence[str] = ()) -> None:
        self.process = process
        self.flags = flags
        self.log: list[str] = []
        self.expected: list[str] = []
        self.port = self.admin_port = 0
        self._reader = asyncio.get_running_loop().create_task(self._read_log())

    @classmethod
    async def start(cls, *flags: str) -> "Gateway":
        """Start `kvgate serve`; with "epp" among the flags `kvgate epp`, which has no port for clients."""
        given, environment = split(flags)
        command = "epp" if "epp" in given else "serve"
        given = [each for each in given if each != command]
        arguments = [command, "--port", "0", "--admin-port", "0", "--events", "off"]
        process = await asyncio.create_subprocess_exec(
            *GATEWAY,
            *arguments,
            *given,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        gateway = cls(process, flags)
        ports = r"(?:listening on https?://\S+:(\d+)|picker only), admin on http://\S+:(\d+)"
        line = await gateway.logged(ports, START_S)
        gateway.port, gateway.admin_port = int(line[1] or 0), int(line[2])
        return gateway

    async def repair(self) -> None:
        """Start again where a test has ended the process, so that it fails that test only."""
        if self.process.returncode is not None:
            vars(self).update(vars(await Gateway.start(*self.flags)))

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.exited()

    async def exited(self) -> int:
        try:
            async with asyncio.timeout(DEADLINE_S):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise AssertionError("the gateway did not stop:\n" + "\n".join(self.log)) from None
        finally:
            await self._reader
        return code

    async def logged(self, pattern: str, seconds: float = 20.0) -> re.Match[str]:
        """Wait for and return the first log line that matches."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(m for m in (re.search(pattern, line) for line in self.log) if m)
            assert found or self.process.returncode is None, "\n".join(self.log)
            return bool(found)

        await until(look, f"log line {pattern!r}", seconds)
        return found[0]

    def faults(self) -> list[str]:
        """Lines of the log that a healthy gateway never writes, with the traceback behind them."""
        return [
            "\n".join(self.log[i : i + 40]) if "Traceback" in line else line
            for i, line in enumerate(self.log)
            if FAULTS.search(line) and line not in self.expected
        ]

    async def expect_fault(self, pattern: str) -> None:
        """Expect a log line of this test once; the next such line is a fault."""
        self.expected.append((await self.logged(pattern)).string)

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def admin(self, method: str, path: str, body: bytes | None = None, *headers: Header) -> Answer:
        client = await Client.open(self.admin_port)
        try:
            kind = () if headers else ((b"Content-Type", b"application/json"),)
            sent = request(method, path, body, (b"Connection", b"close"), *kind, *headers)
            return await client.ask(sent.replace(b"Host: gateway", b"Host: localhost", 1))
        finally:
            await client.close()

    async def endpoint(self, worker: FakeWorker) -> dict[str, Any] | None:
        endpoints = (await self.admin("GET", "/admin/workers")).json["endpoints"]
        return next((e for e in endpoints if e["url"] == worker.url), None)

    async def is_up(self, worker: FakeWorker) -> bool:
        endpoint = await self.endpoint(worker)
        return bool(endpoint and endpoint["workers"] and endpoint["workers"][0]["is_up"])

    async def join(self, worker: FakeWorker) -> None:
        await self.admin("POST", "/admin/workers", json.dumps({"url": worker.url}).encode())
        await until(lambda: self.is_up(worker), f"{worker.url} joined")

    async def drop(self, worker: FakeWorker) -> None:
        await self.admin("DELETE", f"/admin/workers/{worker.url}")

    async def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page by name and labels."""
        page = (await self.admin("GET", "/metrics")).body.decode()
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def total(self, name: str) -> float:
        """Sum over a metric's labels."""
        samples = (await self.metrics()).items()
        return sum(value for key, value in samples if key == name or key.startswith(name + "{"))

    async def _read_log(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())


async def refusal(*flags: str) -> str:
    """Error output of a gateway that does not start with these flags.

    It must end with 2 and no traceback.
    """
    given, environment = split(flags)
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "serve", "--port", "0", "--admin-port", "0", *given),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(patience(START_S)):
        _, printed = await process.communicate()
    assert process.returncode == 2, printed.decode()
    assert "Traceback" not in printed.decode(), printed.decode()
    return printed.decode()
