"""Admission control before two simulated workers of two requests each: queue, priorities, limits, rejections.

Requests go over real sockets, some of them through OpenAI's client.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from gateway.config.tenant_limits import TenantLimits
from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.tenancy.admission.base import Waiter
from loadtest import sdks
from loadtest.fleet import SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, until

pytestmark = pytest.mark.process

DEADLINE_S = patience(30.0)
KEY = f"key-{sha256(b'sk-canary').hexdigest()[:10]}"


class Answer:
    """The answer to one request, under the name that the test gave it."""

    def __init__(self, name: str, status: int, headers: Any, body: dict[str, Any]) -> None:
        self.name, self.status, self.headers, self.body = name, status, headers, body

    @property
    def code(self) -> str:
        return str(self.body.get("error", {}).get("code"))


class Story:
    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway, self.session = gateway, session
        self.ended: list[Answer] = []
        self._asked: list[asyncio.Task[Answer]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def ask(
        self, name: str = "", tenant: str = "t", num_answer: int = 8, **more: Any
    ) -> asyncio.Task[Answer]:
        """Send a request in a task of its own. `more` are kvgate's headers, without their prefix."""
        task = asyncio.get_running_loop().create_task(self._ask(name or tenant, tenant, num_answer, more))
        self._asked.append(task)
        return task

    async def _ask(self, name: str, tenant: str, num_answer: int, more: dict[str, Any]) -> Answer:
        headers = {"x-kvgate-tenant": tenant} | {
            f"x-kvgate-{k.replace('_', '-')}": str(v) for k, v in more.items()
        }
        body = {"model": "m", "prompt": [1, 2, 3, 4] * 8, "max_tokens": num_answer, "ignore_eos": True}
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            ended = Answer(name, answer.status, answer.headers, await answer.json())
        self.ended.append(ended)
        return ended

    async def all(self) -> list[Answer]:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.gather(*self._asked)

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true)

    def waiting(self) -> int:
        gate = self.gateway.parts.requests.dispatch.context.gate
        return sum(len(entry.queue) for entry in gate.queues.models.values()) if gate else 0

    def in_flight(self) -> list[int]:
        ledger = self.gateway.router.ledger
        return sorted(ledger.load(member.worker.id).num_in_flight for member in self.gateway.fleet)

    def fill_with_bookings(self) -> Callable[[], None]:
        """Fill both workers with bookings until the returned function is called."""
        router = self.gateway.router
        bookings = [
            router.ledger.book(member.worker.id, 0, 0) for member in self.gateway.fleet for _ in range(2)
        ]

        def release() -> None:
            for booking in bookings:
                router.ledger.release(booking)
                assert router.on_freed
                router.on_freed(booking.worker)

        return release

    def released(self) -> list[str]:
        """Tenants in the order in which the queue releases their requests from now on."""
        gate = self.gateway.parts.requests.dispatch.context.gate
        assert gate
        go, released = gate.queues.go, list[str]()

        def recording_go(
            waiter: Waiter, request: InferenceRequest, prompt: Prompt | None, decided: Callable[[], None]
        ) -> bool:
            released.append(str(request.tenant))
            return go(waiter, request, prompt, decided)

        gate.queues.go = recording_go
        return released

    async def fill(self, num_answer: int = 60) -> None:
        """Fill both workers with requests."""
        for _ in range(4):
            self.ask("first", num_answer=num_answer)
        await self.until(lambda: self.in_flight() == [2, 2])

    async def queue(self, *names: str, **more: Any) -> None:
        """Queue a request of each tenant, in this order."""
        for name in names:
            num = self.waiting()
            self.ask(name, tenant=name, **more)
            await self.until(lambda num=num: self.waiting() == num + 1)  # type: ignore[misc]

    async def admin(self, path: str) -> Any:
        async with self.session.get(f"http://127.0.0.1:{self.gateway.admin_port}{path}") as answer:
            text = await answer.text()
            return json.loads(text) if "json" in answer.content_type else text

    async def is_clean(self) -> None:
        """Assert that nothing waits, nothing is booked and no tenant has a request under way."""
        gate = self.gateway.parts.requests.dispatch.context.gate
        assert gate
        await self.until(lambda: self.in_flight() == [0] * len(self.gateway.fleet))
        assert self.waiting() == 0 and not self.gateway.parts.requests.dispatch.exchanges
        assert [tenant for tenant in gate.tenants.known() if tenant.num_active] == []


@asynccontextmanager
async def before_workers(urls: list[str], **options: Any) -> AsyncIterator[Story]:
    settings = {"queue_above_in_flight": 2, "trust_headers_from": ["127.0.0.1"]}
    config = config_of(worker=urls, port=0, admin_port=0, probe_interval_s=0.2, **(settings | options))
    gateway = Gateway(config)
    await gateway.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            s = Story(gateway, session)
            await s.until(lambda: {m.worker.url for m in gateway.fleet} == set(urls))
            yield s
    finally:
        await gateway.stop(0.0)


@asynccontextmanager
async def story(**options: Any) -> AsyncIterator[Story]:
    sims = [
        await Sim(SimConfig(port=0, seed=seed, decode_tokens_per_s=200.0, events=False)).start()
        for seed in range(2)
    ]
    try:
        async with before_workers([sim.url for sim in sims], **options) as s:
            yield s
    finally:
        for sim in sims:
            await sim.stop()


async def test_no_worker_exceeds_its_limit_and_all_requests_are_answered() -> None:
    async with story() as s:
        release = s.fill_with_bookings()
        for i in range(40):
            s.ask(tenant=f"t{i % 3}", num_answer=5)
        await s.until(lambda: s.waiting() == 40)
        release()
        assert [answer.status for answer in await s.all()] == [200] * 40
        await s.is_clean()
        page = await s.admin("/metrics")
        assert 'kvgate_queue_wait_seconds_count{model="m"} 40' in page
        assert 'kvgate_queue_requests{model="m"} 0.0' in page
        (queue,) = (await s.admin("/admin/admission"))["queues"]
        assert queue["exits"] == {"served": 40}
        for each in (await s.admin("/admin/decisions"))["decisions"]:
            record = await s.admin(f"/admin/decisions/{each}")
            (chosen,) = [c for c in record["candidates"] if c["worker"] == record["worker"]]
            assert chosen["in_flight"] < 2 and record["queued_s"] > 0


async def test_requests_with_priority_go_first() -> None:
    async with story() as s:
        release, released = s.fill_with_bookings(), s.released()
        await s.queue("low-1", "low-2", priority=5)
        await s.queue("urgent-1", "urgent-2", "urgent-3", priority=-5)
        release()
        assert [answer.status for answer in await s.all()] == [200] * 5
        assert released == ["urgent-1", "urgent-2", "urgent-3", "low-1", "low-2"]
        await s.is_clean()


async def test_tenant_with_a_hundred_requests_does_not_starve_a_tenant_with_three() -> None:
    async with story() as s:
        release, released = s.fill_with_bookings(), s.released()
        for _ in range(100):
            s.ask(tenant="many", num_answer=4)
        await s.until(lambda: s.waiting() == 100)
        for _ in range(3):
            s.ask(tenant="few", num_answer=4)
        await s.until(lambda: s.waiting() == 103)
        release()
        assert [answer.status for answer in await s.all()] == [200] * 103
        assert max(i for i, name in enumerate(released) if name == "few") < 8
        await s.is_clean()


async def test_request_with_an_unreachable_slo_is_rejected_while_others_wait() -> None:
    async with story() as s:
        release = s.fill_with_bookings()
        patient = s.ask("patient")
        await s.until(lambda: s.waiting() == 1)
        hasty = await s.ask("hasty", slo_ttft_ms=100)
        assert (hasty.status, hasty.code) == (429, "slo_unreachable")
        assert int(hasty.headers["retry-after"]) >= 1 and int(hasty.headers["retry-after-ms"]) >= 1
        assert not patient.done() and s.ended == [hasty]
        refusal = (await s.admin("/admin/admission"))["rejections"][0]
        assert refusal["tenant"] == "t" and "TTFT" in refusal["message"]
        release()
        assert (await patient).status == 200
        await s.is_clean()


async def test_disconnected_clients_leave_the_queue() -> None:
    async with story() as s:
        release = s.fill_with_bookings()
        await s.queue("gone-1", "gone-2", "stays")
        for task in s._asked[:2]:
            task.cancel()
        await s.until(lambda: s.waiting() == 1)
        release()
        assert (await s._asked[2]).status == 200
        await asyncio.gather(*s._asked, return_exceptions=True)
        await s.is_clean()
        (queue,) = (await s.admin("/admin/admission"))["queues"]
        assert queue["exits"] == {"client_disconnected": 2, "served": 1}


async def test_full_queue_rejects_with_retry_after() -> None:
    async with story(queue_max_requests=3) as s:
        release = s.fill_with_bookings()
        for _ in range(3):
            s.ask("waits")
        await s.until(lambda: s.waiting() == 3)
        late = await s.ask("late")
        assert (late.status, late.code) == (429, "queue_full")
        assert 1 <= int(late.headers["retry-after"]) <= 60
        flow = await s.admin("/admin/admission")
        (refused,), (queue,) = flow["rejections"], flow["queues"]
        assert refused["request_id"] == late.headers["x-request-id"] != ""
        estimate_s = int(late.headers["retry-after-ms"]) / 1000
        named = re.search(r"retry in about ([0-9.e+]+) s", refused["message"])
        assert named is not None and float(named[1]) == pytest.approx(estimate_s, rel=0.02)
        assert queue["predicted_wait_s"] >= estimate_s - 0.01, (
            "of one estimator; it grows while nothing leaves"
        )
        other = s.ask("other", tenant="other")  # a tenant with fewer requests in the queue
        await s.until(lambda: len(s.ended) == 2)
        assert (s.ended[1].name, s.ended[1].code) == ("waits", "queue_full")
        release()
        assert (await other).status == 200
        await s.all()
        await s.is_clean()


async def test_openai_client_reads_rate_limits() -> None:
    limits = {
        KEY: TenantLimits(requests_per_s=0.5),
        "*": TenantLimits(requests_per_s=50, tokens_per_min=1000),
    }
    async with story(tenants=limits, queue_above_in_flight=0) as s:

        def client(key: str, **more: Any) -> "sdks.openai.AsyncOpenAI":
            return sdks.openai.AsyncOpenAI(api_key=key, base_url=f"{s.url}/v1", **({"max_retries": 0} | more))

        async with client("sk-canary") as first, client("other") as other:
            short = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}
            raw = await first.completions.with_raw_response.create(**short)
            assert raw.headers["x-ratelimit-limit-requests"] == "1"
            assert raw.headers["x-ratelimit-remaining-requests"] == "0"
            with pytest.raises(sdks.openai.RateLimitError) as caught:
                await first.completions.create(**short)
            assert int(caught.value.response.headers["retry-after"]) in (1, 2)
            assert caught.value.code == "rate_limit_exceeded" and "at most 0.5 per second" in str(
                caught.value
            )
            stream = await other.completions.create(
                model="m", prompt=[5] * 100, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
            )
            assert len([piece async for piece in stream]) >= 1
            raw = await other.completions.with_raw_response.create(model="m", prompt=[1, 2, 3], max_tokens=1)
            assert (
                400 <= int(raw.headers["x-ratelimit-remaining-tokens"]) <= 560
            )  # 100 + 400 + 3, and some came
        async with client(
            "sk-canary", max_retries=3
        ) as patient:  # waits as `retry-after` says, and is admitted
            assert (await patient.completions.create(model="m", prompt=[1], max_tokens=1)).choices
        await s.is_clean()
        pages = json.dumps(await s.admin("/admin/admission")) + await s.admin("/metrics")
        assert KEY in pages and "canary" not in pages


async def test_stopping_gateway_serves_its_queue_within_the_timeout() -> None:
    async with story() as s:
        release = s.fill_with_bookings()
        for _ in range(10):
            s.ask("waits")
        await s.until(lambda: s.waiting() == 10)
        stopping = asyncio.get_running_loop().create_task(s.gateway.stop(DEADLINE_S))
        await s.until(lambda: s.gateway.parts.api.api.is_stopping)
        release()
        assert [answer.status for answer in await s.all()] == [200] * 10
        await stopping


async def test_stopping_gateway_rejects_its_queue_after_the_timeout() -> None:
    async with story() as s:
        s.fill_with_bookings()
        for _ in range(10):
            s.ask("waits")
        await s.until(lambda: s.waiting() == 10)
        await s.gateway.stop(0.5)
        answers = await s.all()
        assert {(a.status, a.code, a.headers["retry-after"]) for a in answers} == {(503, "no_worker", "1")}


async def test_queue_is_served_after_a_worker_is_killed() -> None:
    """The other worker serves the requests of the killed one, and those that wait."""
    flags = ["--port", "0", "--decode-tokens-per-s", "200", "--no-events"]
    with running("sim", *flags) as first, running("sim", *flags) as other:
        urls = [first_match(sim, SIM_READY)[0] for sim in (first, other)]
        async with before_workers(urls, max_attempts=3) as s:
            await s.fill(num_answer=600)
            for i in range(12):
                s.ask(tenant=f"t{i % 3}", num_answer=10)
            await s.until(lambda: s.waiting() == 12)
            os.kill(first.pid, signal.SIGKILL)
            assert [answer.status for answer in await s.all()] == [200] * 16
            await s.is_clean()


async def test_queue_is_rejected_after_all_workers_are_killed() -> None:
    flags = ["--port", "0", "--decode-tokens-per-s", "200", "--no-events"]
    with running("sim", *flags) as first, running("sim", *flags) as other:
        urls = [first_match(sim, SIM_READY)[0] for sim in (first, other)]
        async with before_workers(urls) as s:
            await s.fill(num_answer=1000)
            for _ in range(5):
                s.ask("waits")
            await s.until(lambda: s.waiting() == 5)
            for sim in (first, other):
                os.kill(sim.pid, signal.SIGKILL)
            answers = await s.all()
            assert {a.status for a in answers} <= {502, 503}
            assert all("retry-after" in a.headers for a in answers)
            await s.is_clean()


async def test_workers_saturate_by_predicted_ttft() -> None:
    """Prompts of more than a second each, by the assumed speed and by the learnt one."""
    sims = [
        await Sim(SimConfig(port=0, seed=seed, prefill_tokens_per_s=20_000.0, events=False)).start()
        for seed in range(2)
    ]
    try:
        async with before_workers(
            [sim.url for sim in sims], queue_above_ttft_s=0.5, queue_above_in_flight=0
        ) as s:
            body = {"model": "m", "max_tokens": 1, "stream": True}

            async def stream(first: int) -> int:
                prompt = [first, *([7] * 23_999)]
                async with s.session.post(
                    f"{s.url}/v1/completions", json=body | {"prompt": prompt}
                ) as answer:
                    await answer.read()
                    return answer.status

            assert await asyncio.gather(*[stream(i) for i in range(6)]) == [200] * 6
            await s.is_clean()
            (queue,) = (await s.admin("/admin/admission"))["queues"]
            assert queue["exits"]["served"] >= 1
            for each in (await s.admin("/admin/decisions"))["decisions"]:
                record = await s.admin(f"/admin/decisions/{each}")
                (chosen,) = [c for c in record["candidates"] if c["worker"] == record["worker"]]
                assert chosen["booked_tokens"] == 0
    finally:
        for sim in sims:
            await sim.stop()


async def test_processes_of_a_host_share_tenant_limits(tmp_path: Path) -> None:
    """The process with the fewest connections gets the next one, so both processes get requests."""
    path = tmp_path / "kvgate.toml"
    path.write_text('[tenants."*"]\nrequests_per_s = 0.001\nrequests_at_once = 5\n')
    sim = await Sim(SimConfig(port=0, events=False)).start()
    flags = ["--processes", "2", "--worker", sim.url, "--config", str(path)]
    gateway = await asyncio.to_thread(GatewayProcess(*flags).__enter__)
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}
    statuses = []
    try:
        for _ in range(4):  # two connections at once, one at each process
            async with aiohttp.ClientSession() as first, aiohttp.ClientSession() as other:
                for session in (first, other):
                    async with session.post(f"{gateway.url}/v1/completions", json=body) as answer:
                        await answer.read()
                        statuses.append(answer.status)
        page = await asyncio.to_thread(gateway.metrics)
        (tenant,) = (await asyncio.to_thread(gateway.admin, "/admin/admission"))["tenants"]
    finally:
        await asyncio.to_thread(gateway.__exit__, None, None, None)
        await sim.stop()
    assert statuses == [200] * 5 + [429] * 3
    assert 'kvgate_tenant_rejected_requests_total{error="rate_limit_exceeded",tenant="anonymous"} 3.0' in page
    assert (tenant["name"], tenant["in_flight"], tenant["remaining_requests"]) == ("anonymous", 0, 0.0)
