"""KEDA's external scaler: messages by handlers, and over sockets by grpcio's client."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gateway.core.worker import Role
from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from gateway.scaling.keda import METRIC, PATH, services_of
from gateway.scaling.planner import ACTIVE_S
from gateway.server.http2.server import GrpcServer
from tests.support.ext_proc import FakeStream
from tests.support.worlds.planner import PlannerWorld

LLAMA = pb.ScaledObjectRef(name="vllm", namespace="llm", scalerMetadata={"model": "llama"})


class Scaler:
    """A scaler at a port, and what KEDA's client calls."""

    def __init__(self) -> None:
        self.world = PlannerWorld()
        self.server = GrpcServer(services_of(self.world.planner))
        port = self.server.start("127.0.0.1", 0, "scaling_port")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def unary(self, method: str, reply: Any) -> Any:
        path = (PATH + method.encode()).decode()
        return self.channel.unary_unary(path, lambda asked: asked.SerializeToString(), reply.FromString)

    def stream(self) -> Any:
        path = (PATH + b"StreamIsActive").decode()
        serialized = pb.ScaledObjectRef.SerializeToString
        return self.channel.unary_stream(path, serialized, pb.IsActiveResponse.FromString)(LLAMA)


@pytest.fixture
async def scaler() -> AsyncIterator[Scaler]:
    scaler = Scaler()
    yield scaler
    await scaler.channel.close()
    await scaler.server.stop(0)


@pytest.mark.process
async def test_keda_s_round_of_calls(scaler: Scaler) -> None:
    """In KEDA's order: the spec once, then the value and the activity, every few seconds."""
    spec = await scaler.unary("GetMetricSpec", pb.GetMetricSpecResponse)(LLAMA)
    assert [(each.metricName, each.targetSize, each.targetSizeFloat) for each in spec.metricSpecs] == [
        (METRIC, 1, 1.0)
    ]
    asked = pb.GetMetricsRequest(scaledObjectRef=LLAMA, metricName=METRIC)
    value, active = (
        scaler.unary("GetMetrics", pb.GetMetricsResponse),
        scaler.unary("IsActive", pb.IsActiveResponse),
    )
    with pytest.raises(grpc.aio.AioRpcError, match="there is no advice"):  # 0 would remove what there is
        await value(asked)
    assert not (await active(LLAMA)).result
    scaler.world.round()
    (found,) = (await value(asked)).metricValues
    assert (found.metricName, found.metricValue) == (METRIC, 0)
    scaler.world.join("a:1")
    scaler.world.round()
    scaler.world.send(scaler.world.join("b:1"), 2000)
    scaler.world.round()
    (found,) = (await value(asked)).metricValues
    assert found.metricValue == found.metricValueFloat == scaler.world.advice().num_desired > 2
    assert (await active(LLAMA)).result


@pytest.mark.process
async def test_stream_reports_each_change_of_activity(scaler: Scaler) -> None:
    stream = scaler.stream()
    assert not (await stream.read()).result
    scaler.world.planner.unserved("llama")
    assert (await stream.read()).result
    scaler.world.planner.unserved("llama")  # no change
    scaler.world.now += ACTIVE_S + 1
    scaler.world.round()
    assert not (await stream.read()).result
    stream.cancel()
    assert await stream.code() is grpc.StatusCode.CANCELLED


@pytest.mark.process
@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({}, "needs 'model'"),
        ({"model": "x" * 513}, "needs 'model'"),
        ({"model": "m", "role": "x"}, "prefill"),
    ],
)
async def test_trigger_that_names_no_group_is_refused(
    scaler: Scaler, metadata: dict[str, str], why: str
) -> None:
    reference = pb.ScaledObjectRef(scalerMetadata=metadata)
    calls = [
        scaler.unary("IsActive", pb.IsActiveResponse)(reference),
        scaler.unary("GetMetricSpec", pb.GetMetricSpecResponse)(reference),
        scaler.unary("GetMetrics", pb.GetMetricsResponse)(pb.GetMetricsRequest(scaledObjectRef=reference)),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError, match=why) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_stream_that_ends_is_not_called_again() -> None:
    world, stream = PlannerWorld(), FakeStream()
    handler = services_of(world.planner)[PATH + b"StreamIsActive"](stream)
    handler.message(LLAMA.SerializeToString())
    handler.message(b"")  # a second message changes nothing
    handler.half_closed()
    assert [pb.IsActiveResponse.FromString(each).result for each in stream.sent] == [False]
    handler.aborted("reset")
    world.planner.unserved("llama")
    assert len(stream.sent) == 1 and stream.finished is None


@pytest.mark.parametrize("message", [b"\xff\xff", b""])
def test_stream_with_a_bad_message_is_finished(message: bytes) -> None:
    world, stream = PlannerWorld(), FakeStream()
    handler = services_of(world.planner)[PATH + b"StreamIsActive"](stream)
    handler.message(message)
    assert stream.finished is not None and stream.finished[0] == 3
    handler.aborted("the stream has ended")


def test_stream_without_a_message_is_finished() -> None:
    stream = FakeStream()
    services_of(PlannerWorld().planner)[PATH + b"StreamIsActive"](stream).half_closed()
    assert stream.finished == (3, "the method accepts one message per call")


def test_role_chooses_the_group() -> None:
    world = PlannerWorld()
    world.join("p:1", Role.PREFILL)
    world.send(world.join("d:1", Role.DECODE), 500)
    world.round()
    values = {}
    for role in ("prefill", "decode"):
        stream = FakeStream()
        reference = pb.ScaledObjectRef(scalerMetadata={"model": "llama", "role": role})
        handler = services_of(world.planner)[PATH + b"GetMetrics"](stream)
        handler.message(pb.GetMetricsRequest(scaledObjectRef=reference).SerializeToString())
        (value,) = pb.GetMetricsResponse.FromString(stream.sent[0]).metricValues
        values[role] = value.metricValue
    assert values == {role.value: world.advice(role).num_desired for role in (Role.PREFILL, Role.DECODE)}
