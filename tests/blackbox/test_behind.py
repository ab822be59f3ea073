"""Reverse proxies that report the truth, and clients that do not, over real sockets."""

import pytest

from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import (
    COMPLETIONS,
    DONE,
    SSE_HEAD,
    Header,
    chunked,
    completion,
    event,
    post,
    request,
)
from tests.support.blackbox.scripted_worker import says
from tests.support.blackbox.strict_client import Client

LIE: tuple[Header, ...] = (
    (b"X-Forwarded-For", b"203.0.113.7"),
    (b"X-Forwarded-Proto", b"https"),
    (b"Forwarded", b"for=203.0.113.7"),
    (b"X-Real-IP", b"203.0.113.7"),
)
V1 = b"PROXY TCP4 203.0.113.9 10.0.0.1 1234 80\r\n"


async def test_forwarded_headers_of_untrusted_peers_are_ignored() -> None:
    async with running() as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(completion(), *LIE))).status == 200
        call = await worker.called()
        names = {name.lower() for name, _ in call.headers}
        assert not {b"x-forwarded-for", b"x-forwarded-proto", b"forwarded", b"x-real-ip"} & names
        assert (await bench.ask(V1 + post(completion()))).status == 400


async def test_a_trusted_proxy_names_the_client_in_logs_and_for_workers() -> None:
    async with running("--log-requests", "--log-format", "text", "--trusted-proxies", "127.0.0.0/8") as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(completion(), *LIE))).status == 200
        call = await worker.called()
        assert call.value(b"x-forwarded-for") == b"203.0.113.7, 127.0.0.1"
        assert call.value(b"x-forwarded-proto") == b"https"
        await bench.gateway.logged(r"from 203\.0\.113\.7$")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_the_proxy_protocol_names_the_client(processes: str) -> None:
    flags = ("--proxy-protocol", "--trusted-proxies", "127.0.0.1", "--processes", processes)
    async with running("--log-requests", "--log-format", "text", *flags) as bench:
        worker = await bench.worker()
        client = await Client.open(bench.gateway.port)
        assert (await client.ask(V1 + post(completion(), *LIE))).status == 200
        assert (await client.ask(post(completion()))).status == 200  # the same connection
        for number in (1, 2):
            assert (await worker.called(number)).value(b"x-forwarded-for") == b"203.0.113.9"
        await client.close()
        await bench.gateway.logged(r"from 203\.0\.113\.9$")
        assert (await bench.ask(post(completion()))).status == 200  # a connection without a header
        assert (await worker.called(3)).value(b"x-forwarded-for") == b"127.0.0.1"


async def test_all_routes_are_under_the_base_path() -> None:
    async with running("--base-path", "/llm") as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(completion(), target="/llm" + COMPLETIONS + "?a=1"))).status == 200
        assert (await worker.called()).target == COMPLETIONS.encode() + b"?a=1"
        assert (await bench.ask(request("GET", "/llm/v1/models"))).status == 200
        refused = await bench.ask(post(completion()))
        assert (refused.status, "all routes are under /llm" in refused.json["error"]["message"]) == (
            404,
            True,
        )
        for path in ("/health", "/ready", "/llm/ready"):
            assert (await bench.ask(request("GET", path))).status == 200


async def test_streams_forbid_proxy_buffering() -> None:
    async with running() as bench:
        await bench.worker(script=says(SSE_HEAD + chunked(event("a"), DONE)))
        answer = await bench.ask(post(completion(stream=True)))
        assert answer.values(b"x-accel-buffering") == [b"no"]
