"""Scenarios of the Gateway API Inference Extension's conformance tests that concern a picker, and more of
gateways' ways, in a real Envoy with the configurations of deploy/envoy."""

import asyncio

import pytest

from tests.envoy.envoy import OFFER, WEBSOCKETS, Setup, behind_envoy, picked_events, switching
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.scripted_worker import Call, Script
from tests.support.blackbox.strict_client import Client
from tests.support.patience import until

pytestmark = pytest.mark.envoy

SELECTION = b"test-epp-endpoint-selection"
SUBSET_FILTER = """\
          - name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - header: x-subset
                on_header_present:
                  metadata_namespace: envoy.lb.subset_hint
                  key: x-gateway-destination-endpoint-subset
                  type: STRING
"""
EXT_PROC = "          - name: envoy.filters.http.ext_proc\n"


async def is_free(setup: Setup) -> bool:
    return await setup.in_flight() == 0


async def streams(call: Call) -> None:
    """A stream that goes on until its client leaves."""
    await call.send(SSE_HEAD + chunked(event("one"), end=False))
    await call.gone.wait()


@pytest.mark.parametrize("num_pods", [1, 2, 3])
@pytest.mark.parametrize("name", ["envoy.yaml", "original-dst.yaml"])
async def test_each_request_follows_the_picker(name: str, num_pods: int) -> None:
    """GatewayFollowingEPPRouting, and DestinationEndpointServed: 100 requests, 10 at once."""
    async with behind_envoy(3, "KVGATE_EPP_CONFORMANCE=true", name=name) as setup:
        pods = setup.workers[:num_pods]
        selection = (SELECTION, b",".join(pod.id.encode() for pod in pods))

        async def client() -> None:
            for _ in range(10):
                answer = await setup.ask(post(completion(), selection))
                assert answer.status == 200
                if name == "envoy.yaml":  # ORIGINAL_DST reports none
                    served = answer.value(b"x-conformance-test-served-endpoint")
                    assert served in [pod.id.encode() for pod in pods]

        await asyncio.gather(*[client() for _ in range(10)])
        assert sum(len(pod.calls) for pod in pods) == 100
        assert all(pod.calls for pod in pods) and not any(pod.calls for pod in setup.workers[num_pods:])
        await until(lambda: is_free(setup), "bookings are released")


async def test_a_port_of_a_pod_is_an_endpoint() -> None:
    """GatewayFollowingEPPRoutingWithDataParallelism: ranks are ports of one address."""
    async with behind_envoy(3, "KVGATE_EPP_CONFORMANCE=true") as setup:
        for rank in setup.workers:
            for _ in range(3):
                assert (await setup.ask(post(completion(), (SELECTION, rank.id.encode())))).status == 200
        assert [len(rank.calls) for rank in setup.workers] == [3, 3, 3]
        bare = await setup.ask(post(completion(), (SELECTION, b"127.0.0.1")))
        outside = await setup.ask(post(completion(), (SELECTION, b"127.0.0.9")))
        assert (bare.status, outside.status) == (200, 503)


async def test_a_worker_that_envoy_does_not_know_moves_the_booking() -> None:
    async with behind_envoy(2, "--policy", "round_robin", num_known=1) as setup:
        first, second = setup.workers
        for _ in range(4):
            assert (await setup.ask(post(completion()))).status == 200
        assert (len(first.calls), len(second.calls)) == (0, 4)
        await until(lambda: is_free(setup), "bookings are released")
        assert picked_events(setup.gateway.metrics())["served_elsewhere"] >= 2


async def test_envoy_goes_down_the_list_of_fallbacks() -> None:
    flags = ("--epp-fallbacks", "1", "--probe-interval-s", "60")
    async with behind_envoy(2, *flags, "--policy", "round_robin") as setup:
        await setup.workers[0].die()
        for _ in range(4):
            assert (await setup.ask(post(completion()))).status == 200
        assert len(setup.workers[1].calls) == 4
        await until(lambda: is_free(setup), "bookings are released")
        assert picked_events(setup.gateway.metrics())["served_elsewhere"] >= 1


async def test_a_subset_is_never_left() -> None:
    edits = [(EXT_PROC, SUBSET_FILTER + EXT_PROC)]
    async with behind_envoy(2, "--policy", "round_robin", edits=edits) as setup:
        inside = setup.workers[1].id.encode()
        for hint, status in [
            (inside, 200),
            (b"127.0.0.1", 200),
            (b"10.9.9.9:1, " + inside, 200),
            (b"10.9.9.9:1", 503),
            (b"[::1]:8000", 503),
            (b"unknown", 503),
        ]:
            answer = await setup.ask(post(completion(), (b"x-subset", hint)))
            assert answer.status == status, hint
            if status == 503:
                assert answer.value(b"x-llm-d-request-dropped-reason") == b"no_worker"
        only = [len(worker.calls) for worker in setup.workers]
        assert sum(only) == 3 and only[1] >= 2


async def test_saturation_is_answered_with_429_and_the_reason() -> None:
    async with behind_envoy(1, "--queue-above-in-flight", "1", "--queue-max-requests", "1") as setup:
        setup.workers[0].script = streams
        clients = [await Client.open(setup.port) for _ in range(3)]
        await clients[0].send(post(completion(stream=True)))
        assert (await clients[0].head()).status == 200
        await clients[1].send(post(completion()))
        await until(lambda: _is_queued(setup), "the second request waits")
        answer = await clients[2].ask(post(completion()))
        assert answer.status == 429 and int(answer.value(b"retry-after") or 0) >= 1
        assert answer.value(b"x-kvgate-dropped-reason") == b"queue_full"
        for client in clients:
            await client.close()
        await until(lambda: is_free(setup), "bookings are released")


async def _is_queued(setup: Setup) -> bool:
    page = await asyncio.to_thread(setup.gateway.metrics)
    waiting = [line.split()[-1] for line in page.splitlines() if line.startswith("kvgate_queue_requests{")]
    return any(float(number) for number in waiting)


UNUSUAL = [
    (post(b"\x1f\x8b\x08\x00garbage", (b"Content-Encoding", b"gzip")), 415),
    (post(b""), 400),
    (b"GET /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 200),
    (post(completion(), target="/v1/unknown"), 404),
    (post(completion(), (b"x-gateway-destination-endpoint-served", b"10.6.6.6:1")), 200),
    (post(completion(), (b"x-gateway-destination-endpoint-subset", b"10.6.6.6:1")), 200),
]


async def test_unusual_requests_have_their_answer() -> None:
    async with behind_envoy(1) as setup:
        for sent, status in UNUSUAL:
            assert (await setup.ask(sent)).status == status, sent[:80]
        await until(lambda: is_free(setup), "bookings are released")


async def busy(call: Call) -> None:
    await call.send(wire(503, b'{"error":"busy"}', (b"Content-Type", b"application/json")))


async def resets(call: Call) -> None:
    call.reset()


@pytest.mark.parametrize("script", [busy, resets])
async def test_a_worker_that_refuses_frees_its_booking(script: Script) -> None:
    async with behind_envoy(1) as setup:
        setup.workers[0].script = script
        assert (await setup.ask(post(completion()))).status == 503
        await until(lambda: is_free(setup), "the booking is released")


@pytest.mark.parametrize("name", ["envoy.yaml", "original-dst.yaml"])
async def test_an_empty_pool_is_answered_with_503_once_it_is_known(name: str) -> None:
    async with behind_envoy(1, "--probe-interval-s", "0.2", name=name) as setup:
        await setup.workers[0].die()

        async def is_answered() -> bool:
            answer = await setup.ask(post(completion()))
            assert answer.status == 503
            return answer.value(b"x-llm-d-request-dropped-reason") == b"no_worker"

        await until(is_answered, "the picker knows that no worker is up")
        await until(lambda: is_free(setup), "bookings are released")


async def test_a_client_that_leaves_at_any_stage_frees_all() -> None:
    async with behind_envoy(1) as setup:
        setup.workers[0].script = streams
        whole = post(completion(stream=True))
        for stage in ("half a body", "whole", "streaming"):
            client = await Client.open(setup.port)
            await client.send(whole[:-5] if stage == "half a body" else whole)
            if stage == "streaming":
                assert (await client.head()).status == 200
            await client.close()
            await until(lambda: is_free(setup), f"bookings are released: {stage}")


async def test_a_websocket_is_picked_and_its_bytes_pass() -> None:
    async with behind_envoy(1, edits=[WEBSOCKETS]) as setup:
        setup.workers[0].script = switching
        client = await Client.open(setup.port)
        await client.send(OFFER)
        await client.switched()
        assert await setup.in_flight() == 1
        await client.send(b"ping")
        assert await client.exactly(4) == b"pong"
        await client.close()
        await until(lambda: is_free(setup), "the booking is released")


async def test_a_drain_lets_streams_end_and_takes_no_more() -> None:
    async with behind_envoy(1) as setup:
        may_end = asyncio.Event()

        async def stream(call: Call) -> None:
            await call.send(SSE_HEAD + chunked(event("one"), end=False))
            await may_end.wait()
            await call.send(chunked(event("two"), DONE))

        setup.workers[0].script = stream
        client = await Client.open(setup.port)
        await client.send(post(completion(stream=True)))
        assert (await client.head()).status == 200 and b"one" in await client.piece()
        setup.gateway.process.terminate()
        await until(lambda: "stopping" in setup.gateway.log(), "the gateway drains")
        may_end.set()
        rest = b""
        while piece := await client.piece():
            rest += piece
        assert b"two" in rest and b"[DONE]" in rest
        await client.close()
        assert await asyncio.to_thread(setup.gateway.process.wait, 20) == 0
        assert "aborted" not in setup.gateway.log()
