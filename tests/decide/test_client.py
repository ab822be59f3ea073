"""`kvgate.DecideClient` before a gateway process with scripted workers: real sockets, grpc's own client."""

import asyncio
import re
import textwrap
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import kvgate
from gateway.decide.services import DECIDE, SESSION
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from tests import ROOT
from tests.support.blackbox.decide_service import service
from tests.support.blackbox.http1_bytes import completion
from tests.support.blackbox.keys import new_key
from tests.support.patience import patience, until

pytestmark = pytest.mark.process

BODY = completion()
GUIDE = ROOT / "docs" / "guides" / "decision-service.md"


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
async def test_a_program_sends_the_request_itself_and_reports_its_course(flags: tuple[str, ...]) -> None:
    async with (
        service(2, "--policy", "round_robin", *flags) as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        made = [await client.decide(body=BODY, headers={"x-request-id": "7"}) for _ in range(2)]
        assert {each.target.address for each in made} == {worker.id for worker in setup.workers}
        assert await setup.in_flight() == 2 and made[0].id != made[1].id and made[0].reason
        assert await client.first_token(made[0]) and not await client.first_token(made[0])
        assert await client.finished(made[0], prompt_tokens=5, output_tokens=2, cached_tokens=0)
        assert not await client.finished(made[0])
        assert await client.failed(made[1], "the client left", by_worker=False)
        assert await setup.is_free()


async def test_the_guides_program_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    async with service(1) as setup:
        program = program.replace("127.0.0.1:9002", setup.target)
        names: dict[str, Any] = {}
        exec(f"async def run(body):\n{textwrap.indent(program, '    ')}    return decision", names)
        made = await names["run"](BODY)
        assert isinstance(made, kvgate.RemoteDecision) and await setup.is_free()
        assert await setup.counts("report") and not await setup.counts("unknown_report")


async def test_a_report_finds_its_decision_in_another_process() -> None:
    async with service(1, "--processes", "2") as setup, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(own_connection(setup.target)) for _ in range(8)]
        made = await clients[0].decide(body=BODY)
        for client in clients:
            assert await client.first_token(made) is (client is clients[0])
        assert await clients[-1].finished(replace(made, id="unknown")) is False
        others = [await clients[0].decide(body=BODY) for _ in clients]
        assert all([await client.finished(each) for client, each in zip(clients, others, strict=True)])
        assert await clients[-1].finished(made) and await setup.is_free()


def own_connection(target: str) -> kvgate.DecideClient:
    """A client that shares no connection with another, whichever process the kernel gives it."""
    return kvgate.DecideClient(target, options=[("grpc.use_local_subchannel_pool", 1)])


async def test_token_ids_and_fallbacks() -> None:
    async with service(2) as setup, kvgate.DecideClient(setup.target) as client:
        made = await client.decide(model="m", token_ids=range(100), fallbacks=3)
        assert made.num_tokens == 100 and made.prefill is None and made.body is None
        assert [each.address for each in (made.target, *made.fallbacks)] in (
            [worker.id for worker in setup.workers],
            [worker.id for worker in reversed(setup.workers)],
        )
        other = await client.decide(model="m", token_ids=range(100), exclude=[made.target.worker])
        assert other.target.worker == made.fallbacks[0].worker
        assert await client.failed(made, "connection refused") and await client.finished(other, status=200)
        assert await setup.is_free()


async def test_refusals_have_the_answer_for_the_client() -> None:
    async with service(1) as setup, kvgate.DecideClient(setup.target) as client:
        with pytest.raises(kvgate.RequestRejected) as caught:
            await client.decide(body=completion(model="unknown"))
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")
        assert b"model_not_found" in caught.value.body and b"json" in caught.value.headers["content-type"]


async def test_the_clients_key_counts_as_at_the_proxy(tmp_path: Path) -> None:
    key, line = await asyncio.to_thread(new_key, "--tenant", "acme")
    (tmp_path / "keys").write_text(line)
    async with (
        service(1, "--key-file", str(tmp_path / "keys")) as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(kvgate.RequestRejected) as caught:
                await client.decide(body=BODY, headers=headers)
            assert caught.value.status == 401
        made = await client.decide(body=BODY, headers={"authorization": f"Bearer {key}"})
        assert await client.finished(made)


async def test_saturation_is_waited_for_or_reported() -> None:
    async with (
        service(1, "--queue-above-in-flight", "1") as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        held = await client.decide(body=BODY)
        with pytest.raises(kvgate.RequestQueued) as caught:
            await client.decide(body=BODY, max_queue_s=0.05)
        assert caught.value.retry_after_s > 0
        waiting = asyncio.get_running_loop().create_task(client.decide(body=BODY))
        await until(lambda: setup.counts("queued"), "the first was never queued")
        assert await client.finished(held)
        assert await client.finished(await waiting) and await setup.is_free()


async def test_a_call_that_is_cancelled_in_the_queue_leaves_nothing() -> None:
    async with (
        service(1, "--queue-above-in-flight", "1") as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        held = await client.decide(body=BODY)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.decide(body=BODY, timeout_s=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: setup.counts("client_disconnected"), "the call is given up")
        assert await client.finished(held) and await setup.is_free()


async def test_a_booking_without_a_report_expires() -> None:
    async with (
        service(1, "KVGATE_EPP_DECISION_EXPIRES_S=0.2") as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        made = await client.decide(body=BODY)
        await until(setup.is_free, "the booking expires")
        assert await setup.counts("expired") and not await client.finished(made)


def session(channel: grpc.aio.Channel) -> Any:
    """Open a stream of messages each way."""
    return channel.stream_stream(
        SESSION.decode(),
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=pb.SessionReply.FromString,
    )()


async def test_a_session_has_both_and_releases_all_when_it_is_reset() -> None:
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        call = session(channel)
        asked = pb.DecideRequest(body=BODY)
        await call.write(pb.SessionRequest(tag=1, decide=asked))
        await call.write(pb.SessionRequest(tag=2, decide=asked))
        made = [await call.read(), await call.read()]
        assert {each.tag for each in made} == {1, 2}
        done = pb.ReportRequest(decision_id=made[0].decide.decided.decision_id, finished=pb.Finished())
        await call.write(pb.SessionRequest(tag=3, report=done))
        reply = await call.read()
        assert (reply.tag, reply.report.result) == (3, pb.ReportReply.APPLIED)
        assert await setup.in_flight() == 1
        call.cancel()
        await until(setup.is_free, "the session's bookings are released")


async def test_a_session_goes_on_while_the_gateway_drains() -> None:
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        call = session(channel)
        await call.write(pb.SessionRequest(tag=1, decide=pb.DecideRequest(body=BODY)))
        made = (await call.read()).decide.decided
        setup.gateway.process.terminate()
        await until(lambda: "stopping" in setup.gateway.log(), "the gateway drains")
        async with kvgate.DecideClient(setup.target) as client:
            await until(lambda: _is_closed(client), "nothing new is accepted")
        done = pb.ReportRequest(decision_id=made.decision_id, finished=pb.Finished())
        await call.write(pb.SessionRequest(tag=2, report=done))
        assert (await call.read()).report.result == pb.ReportReply.APPLIED
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await asyncio.to_thread(setup.gateway.process.wait, patience(20)) == 0
        assert "aborted" not in setup.gateway.log()


async def _is_closed(client: kvgate.DecideClient) -> bool:
    try:
        await client.failed(await client.decide(body=BODY), by_worker=False)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_a_gateway_that_is_gone_takes_no_report_and_is_found_again() -> None:
    async with service(1) as setup, kvgate.DecideClient(setup.target) as client:
        made = await client.decide(body=BODY)
        assert await asyncio.to_thread(setup.gateway.stop) == 0
        assert not await client.finished(made) and await _is_closed(client)
        async with service(1, port=int(setup.target.rpartition(":")[2])) as other:
            await until(lambda: _decides(client), "the client connects again")
            assert not await client.finished(made)
            assert await other.is_free()


async def _decides(client: kvgate.DecideClient) -> bool:
    try:
        return await client.finished(await client.decide(body=BODY))
    except grpc.aio.AioRpcError:
        return False


async def test_a_wait_of_no_time_is_reported_at_once() -> None:
    async with (
        service(1, "--queue-above-in-flight", "1") as setup,
        kvgate.DecideClient(setup.target) as client,
    ):
        held = await client.decide(body=BODY)
        with pytest.raises(kvgate.RequestQueued):
            await client.decide(body=BODY, max_queue_s=0)
        assert await client.finished(held) and await setup.is_free()


async def test_a_thousand_decisions_at_once_are_each_released() -> None:
    async with service(2) as setup, kvgate.DecideClient(setup.target) as client:
        made = await asyncio.gather(*[client.decide(body=BODY) for _ in range(1000)])
        assert len({each.id for each in made}) == await setup.in_flight() == 1000
        assert all(await asyncio.gather(*[client.finished(each) for each in made]))
        assert await setup.is_free()


async def test_garbage_is_answered_with_a_status() -> None:
    async with service(1) as setup, grpc.aio.insecure_channel(setup.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(DECIDE.decode())(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and await setup.is_free()
