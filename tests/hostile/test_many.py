"""Many connections, aborts, prompts and names: the state kept of each is bounded."""

import json
import random

from gateway.app import bundled_tokenizer
from loadtest.hostile_leaks import abort_a_stream, come_and_go, many
from tests.support.blackbox.http1_bytes import CHAT, Header, post
from tests.support.blackbox.several_processes import is_running, pids
from tests.support.blackbox.siege import chat, count, siege

NUM_CONNECTIONS = count(3000, 50_000)
NUM_ABORTS = count(400, 20_000)
NUM_PROMPTS = count(400, 100_000)
NUM_NAMES = count(1000, 100_000)
MAX_PAGE_BYTES = 1 << 20
"""Lines of metrics at most; a page that grows with clients' names is no page any more."""


async def test_connections_and_aborted_streams_leave_no_state() -> None:
    async with siege("--tokenizer", str(bundled_tokenizer())) as under:
        port = under.gateway.port
        await many(NUM_CONNECTIONS, lambda number: come_and_go(port, number))
        rng = random.Random(1)
        await many(NUM_ABORTS, lambda number: abort_a_stream(port, number, rng))
        assert await under.gateway.total("kvgate_client_disconnects_total") > NUM_ABORTS / 4


async def test_distinct_prompts_and_names_leave_little_state() -> None:
    """Sessions, users, tenants, keys, unknown models, trace headers: each request has new ones."""
    trusted = ("--trust-headers-from", "127.0.0.1", "--log-requests", "--record", "/dev/null")
    async with siege("--tokenizer", str(bundled_tokenizer()), *trusted) as under:

        async def ask(number: int) -> None:
            headers: list[Header] = [
                (b"x-session-id", b"s%d" % number),
                (b"x-kvgate-tenant", b"t%d" % number),
                (b"x-kvgate-priority", b"%d" % (number - 50)),
                (b"authorization", b"Bearer k%d" % number),
                (b"x-request-id", b"r%d" % number * 200),
                (b"traceparent", b"00-%032x-%016x-01" % (number + 1, number + 1)),
                (b"baggage", b"a=%d" % number),
            ]
            answer = await under.ask(post(chat(f"{number} " * 40, user=f"u{number}"), *headers, target=CHAT))
            assert answer.status == 200, answer.body[:300]

        async def ask_nonsense(number: int) -> None:
            body = chat(model=f"m{number}" + "x" * 1000)
            answer = await under.ask(post(body, (b"x-kvgate-slo-ttft-ms", b"9" * 400), target=CHAT))
            assert answer.status == 404 and len(answer.body) < 10_000

        await many(NUM_PROMPTS, ask)
        await many(NUM_NAMES, ask_nonsense)
        page = (await under.gateway.admin("GET", "/metrics")).body
        assert len(page) < MAX_PAGE_BYTES, f"{len(page)} bytes of metrics"
        flow = (await under.gateway.admin("GET", "/admin/admission")).body
        assert len(json.loads(flow)) and len(flow) < 8 << 20


async def test_floods_of_several_processes_leave_both_alive() -> None:
    flags = ("--processes", "2", "--tokenizer", str(bundled_tokenizer()))
    async with siege(*flags) as under:
        port, rng = under.gateway.port, random.Random(2)
        before = pids(under.gateway)

        async def attack() -> None:
            await many(NUM_CONNECTIONS // 2, lambda number: come_and_go(port, number))
            assert (await under.gateway.admin("GET", "/admin/workers")).status == 200
            await many(NUM_ABORTS // 2, lambda number: abort_a_stream(port, number, rng))

        await under.keep_good(attack())
        assert len(before) == 2 and pids(under.gateway) == before
        assert all(is_running(pid) for pid in before.values())
