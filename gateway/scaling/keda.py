"""KEDA's external scaler over gRPC: activity, and the advised number of workers as a metric.

    IsActive         requests came in the last minute, wait or run
    StreamIsActive   the same, at once and after each change: a request that finds no worker starts the fleet
    GetMetricSpec    one metric with the target 1, so that its value is the number of replicas
    GetMetrics       the advised number of workers

The trigger's metadata names the `model`, by any name of its requests, and for split fleets the `role`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from gateway.core.worker import Role
from gateway.epp.stream import INVALID_ARGUMENT, OK, UNAVAILABLE, Answer, GrpcStream, Service, unary
from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from gateway.scaling.groups import GroupKey
from gateway.scaling.planner import Planner

PATH = b"/externalscaler.ExternalScaler/"
METRIC = "kvgate-replicas"
MAX_NAME = 512
"""Characters of a model name."""
ROLES = {role.value: role for role in Role}


class BadReference(ValueError):
    """The trigger's metadata does not name a group; the text says what to write."""


class NoAdvice(Exception):
    """The gateway has just started, or was not asked about this group before."""


def services_of(planner: Planner) -> Mapping[bytes, Service]:
    """The scaler's methods by path."""
    return {
        PATH + b"IsActive": unary(_answered(partial(_is_active, planner))),
        PATH + b"StreamIsActive": partial(ActivityStream, planner),
        PATH + b"GetMetricSpec": unary(_answered(_metric_spec)),
        PATH + b"GetMetrics": unary(_answered(partial(_metrics, planner))),
    }


class ActivityStream:
    """A StreamIsActive call: a message at once, and one for each change until the client leaves."""

    def __init__(self, planner: Planner, stream: GrpcStream) -> None:
        self._planner, self._stream = planner, stream
        self._key: GroupKey | None = None
        self._sent: bool | None = None
        self._stop: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"ActivityStream({self._key}, sent={self._sent})"

    def message(self, message: bytes) -> None:
        if self._key is not None:
            return
        try:
            self._key = key = _key(pb.ScaledObjectRef.FromString(message))
        except (DecodeError, BadReference) as error:
            self._stream.finish(INVALID_ARGUMENT, str(error))
            return
        self._stop = self._planner.listen(*key, self._look)
        self._look()

    def half_closed(self) -> None:
        """The client has sent its one message; the stream goes on."""
        if self._key is None:
            self._stream.finish(INVALID_ARGUMENT, "the method accepts one message per call")

    def aborted(self, why: str) -> None:
        self._stop()

    def _look(self) -> None:
        assert self._key is not None
        is_active = self._planner.is_active(*self._key)
        if is_active is not self._sent:
            self._sent = is_active
            self._stream.send(pb.IsActiveResponse(result=is_active).SerializeToString())


def _answered(answer: Callable[[bytes], Any]) -> Callable[[bytes], Answer]:
    def one(message: bytes) -> Answer:
        try:
            return OK, answer(message).SerializeToString()
        except (DecodeError, BadReference) as error:
            return INVALID_ARGUMENT, str(error).encode()
        except NoAdvice as error:
            return UNAVAILABLE, str(error).encode()

    return one


def _key(reference: pb.ScaledObjectRef) -> GroupKey:
    """The model and role of a trigger. Raises BadReference."""
    metadata = reference.scalerMetadata
    model, role = metadata.get("model", ""), metadata.get("role", Role.BOTH.value)
    if not 0 < len(model) <= MAX_NAME:
        raise BadReference(
            f"metadata needs 'model', a name that requests use, of at most {MAX_NAME} characters"
        )
    if role not in ROLES:
        raise BadReference(f"metadata has the role '{role[:80]}'; roles are {', '.join(ROLES)}")
    return GroupKey(model, ROLES[role])


def _is_active(planner: Planner, message: bytes) -> pb.IsActiveResponse:
    return pb.IsActiveResponse(result=planner.is_active(*_key(pb.ScaledObjectRef.FromString(message))))


def _metric_spec(message: bytes) -> pb.GetMetricSpecResponse:
    _key(pb.ScaledObjectRef.FromString(message))
    spec = pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
    return pb.GetMetricSpecResponse(metricSpecs=[spec])


def _metrics(planner: Planner, message: bytes) -> pb.GetMetricsResponse:
    asked = pb.GetMetricsRequest.FromString(message)
    advice = planner.advice(*_key(asked.scaledObjectRef))
    if advice is None:  # an autoscaler without a number does nothing; with 0 it would remove the fleet
        raise NoAdvice("there is no advice for this model and role yet; ask again in some seconds")
    num = advice.num_desired
    value = pb.MetricValue(
        metricName=asked.metricName or METRIC, metricValue=num, metricValueFloat=float(num)
    )
    return pb.GetMetricsResponse(metricValues=[value])
