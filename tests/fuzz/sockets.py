"""Fuzzer of the real process, over real sockets.

The gateway answers or ends every connection, logs no error, forwards nothing that h11 does not read too, and
keeps no resources when it is over.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import h11

from gateway.http.upgrade import HTTP2_REFUSAL
from tests.conformance.wire import pieces, read_answers, read_request
from tests.fuzz import judge
from tests.fuzz.inputs import Input, make, smaller
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.strict_client import Client, Cut
from tests.support.patience import patience, until

LANES = "abcdefghijklnopqrstuvwxyz0123456"
"""Number of inputs under way at once; each has its own worker, with a model by this name."""

FLAGS = (
    *("--head-timeout-s", "1", "--body-timeout-s", "0.5", "--keep-alive-s", "0.5"),
    *("--first-byte-timeout-s", "1", "--idle-timeout-s", "1", "KVGATE_TOKENIZER_TIMEOUT_S=1"),
    *("--max-body-bytes", "1000000", "--max-attempts", "2", "--probe-interval-s", "10"),
)
ENDS_S = patience(30.0)
"""Several times the sum of all these limits: a connection that is open then, hangs."""
MAX_GROWTH = 32 << 20
"""Growth of the gateway's memory after the first inputs: caches of prompts and records fill in the
meantime.
"""


NOT_ANSWERED = "malformed, and not answered"


class Found(Exception):
    """Fault, and the input that caused it, where one is to blame."""

    def __init__(self, fault: str, given: Input | None = None) -> None:
        super().__init__(fault)
        self.given = given


class Pipeline:
    """Worker, and the input that is under way there."""

    def __init__(self, name: str, pipelines: Sequence["Pipeline"] = ()) -> None:
        self.name = name.encode()
        self.given = make(0, 0)
        self.bodies: list[bytes] = []
        self.said = judge.requests(b"")
        self.late: tuple[bytes, ...] = ()
        self.takes_more = False
        self._before = b""
        self._pipelines = pipelines
        self.fault = ""
        self.worker = FakeWorker((name,), self._answer)

    async def _answer(self, call: Call) -> None:
        try:
            self.bodies.append(read_request(call.head + b"\r\n\r\n" + call.body).body)
        except (AssertionError, h11.ProtocolError) as exc:
            self.fault = f"a worker got no plain request: {exc!r}: {call.head!r}"
        for piece in pieces(self.given.answer, self.given.answer_cuts):
            await call.send(piece)
            await asyncio.sleep(0)
        if self.given.closes:
            call.close()

    def sent(self, given: Input) -> bytes:
        return given.data.replace(b'"model":"m"', b'"model":"%b"' % self.name).replace(
            b'"model": "m"', b'"model": "%b"' % self.name
        )

    async def run(self, bench: Bench, given: Input) -> None:
        """Run one input. Raises Found.

        A client with a late first byte is closed without an answer, which is right and happens on a loaded
        machine: so a missing answer counts the third time.
        """
        for _ in range(2):
            try:
                return await self._run(bench, given)
            except Found as found:
                if str(found) != NOT_ANSWERED:
                    raise
        return await self._run(bench, given)

    async def _run(self, bench: Bench, given: Input) -> None:
        self.given, self.bodies, self.fault = given, [], ""
        data = self.sent(given)
        self.late, self.said = self.said.bodies, judge.requests(data)
        self.takes_more = judge.takes_more(data) or judge.takes_more(self._before)
        self._before = data
        client = await Client.open(bench.gateway.port)
        try:
            async with asyncio.timeout(ENDS_S):
                out, is_all = await _exchange(client, data, given)
        except TimeoutError:
            raise Found("the connection neither ended nor was answered", given) from None
        finally:
            await client.close()
        is_judged = is_all and given.leaving == "stays" and not judge.takes_more(data)
        fault = self.fault or self._wrong() or (_wrongly_answered(out, self.said) if is_judged else "")
        if b'"code":"internal_error"' in out:
            fault = "an internal error"
        if fault:
            raise Found(fault, given)

    def _wrong(self) -> str:
        """True if a worker got something else than h11 reads.

        It may get a request twice, one of a client that has left during the next input, and one with a broken
        model that is another lane's name.
        """
        pipelines = [pipeline for pipeline in self._pipelines if pipeline is not self]
        missing = [*self.late, *self.said.bodies]
        for body in self.bodies:
            if body in missing:
                del missing[: missing.index(body)]
            elif self.takes_more or any(pipeline.may_send(body) for pipeline in pipelines):
                continue
            else:
                return f"h11 reads {self.said.bodies}, a worker got {self.bodies}"
        return ""

    def may_send(self, body: bytes) -> bool:
        return self.takes_more or body in self.late or body in self.said.bodies


async def _exchange(client: Client, data: bytes, given: Input) -> tuple[bytes, bool]:
    """All bytes that the client gets until the connection ends or it leaves; and whether it ended by a
    FIN.
    """
    reading = asyncio.get_running_loop().create_task(_read(client))
    with contextlib.suppress(ConnectionError):
        for piece in pieces(data, given.cuts):
            await client.send(piece)
            await asyncio.sleep(0)
    with contextlib.suppress(OSError):
        if given.leaving == "resets":
            client.reset()
        elif given.leaving == "half-closes":
            client.half_close()
    if given.leaving == "closes":
        await client.close()
    return await reading


async def _read(client: Client) -> tuple[bytes, bool]:
    out = b""
    with contextlib.suppress(Cut):  # ended by a reset, which may overtake an answer
        while some := await client._some(1 << 16):
            out += some
        return out, True
    return out, False


def _wrongly_answered(out: bytes, verdict: judge.Verdict) -> str:
    if not out:
        return NOT_ANSWERED if verdict.is_malformed and not verdict.bodies else ""
    if out == HTTP2_REFUSAL:  # no answer in HTTP/1.1, and the end
        return ""
    try:
        answers = read_answers(out, verdict.methods, is_closed=True)
    except (AssertionError, h11.ProtocolError) as exc:
        return f"the client got no plain answers: {exc!r}: {out[-200:]!r}"
    final = [answer for answer in answers if answer.status >= 200]
    if len(final) > len(verdict.bodies) + 1:
        return f"{len(final)} answers to {len(verdict.bodies)} requests"
    if verdict.is_malformed and len(final) > len(verdict.bodies) and final[-1].status not in judge.REFUSALS:
        return f"malformed, and answered {final[-1].status}"
    return ""


# a whole run -------------------------------------------------------------------------------------


def num_files(bench: Bench) -> int:
    return len(os.listdir(f"/proc/{bench.gateway.process.pid}/fd"))


def num_clients(bench: Bench) -> int:
    """Connections to the gateway's port that the kernel knows as established or half closed."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    local = f":{bench.gateway.port:04X}"
    return sum(line.split()[1].endswith(local) and line.split()[3] in ("01", "08") for line in lines)


class Run:
    """Inputs of one seed, each taken by the next free lane, until the time is over or one fails."""

    def __init__(self, bench: Bench, seed: int, seconds: float) -> None:
        self.bench = bench
        self.num_inputs = 0
        self.found: Found | None = None
        self._seed = seed
        self._deadline = time.monotonic() + seconds

    async def drive(self, pipeline: Pipeline) -> None:
        while not self.found and time.monotonic() < self._deadline:
            self.num_inputs += 1
            try:
                await pipeline.run(self.bench, make(self._seed, self.num_inputs))
            except Found as found:
                self.found = self.found or found
            if faults := self.bench.gateway.faults():
                about = range(max(self.num_inputs - 2 * len(LANES), 1), self.num_inputs + 1)
                self.found = self.found or Found(f"logged by one of the inputs {about}: {faults[0]}")


async def fuzz(seed: int, seconds: float) -> int:
    """Number of inputs tried. Raises Found, with an input made small."""
    async with running(*FLAGS) as bench:
        pipelines: list[Pipeline] = []
        pipelines += [Pipeline(name, pipelines) for name in LANES]
        for pipeline in pipelines:
            bench.workers.append(await pipeline.worker.start())
            await bench.gateway.join(pipeline.worker)
        warm_up = Run(bench, seed + 1, seconds / 5)
        await asyncio.gather(*(warm_up.drive(pipeline) for pipeline in pipelines))
        files, memory = num_files(bench), bench.gateway.rss_bytes()
        run = Run(bench, seed, seconds * 4 / 5)
        await asyncio.gather(*(run.drive(pipeline) for pipeline in pipelines))
        if found := warm_up.found or run.found:
            raise await _made_small(bench, pipelines[0], found)
        await bench.nothing_in_flight()
        await until(lambda: num_clients(bench) == 0, "no client connected")
        most = files + 3 * len(LANES)  # for each worker: pooled, a probe, a prompt to tokenize
        await until(lambda: num_files(bench) <= most, f"no more than {most} files open")
        if (growth := bench.gateway.rss_bytes() - memory) > MAX_GROWTH:
            raise Found(f"the gateway grew by {growth >> 20} MiB in {run.num_inputs} inputs")
        return warm_up.num_inputs + run.num_inputs


async def _made_small(bench: Bench, pipeline: Pipeline, found: Found) -> Found:
    async def fails(shorter: Input) -> bool:
        try:
            await pipeline.run(bench, shorter)
        except Found as other:
            return str(other)[:25] == str(found)[:25]
        return False

    if found.given is None or not await fails(found.given):
        return found
    return Found(str(found), await smaller(found.given, fails, tries=100))
