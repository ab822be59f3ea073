"""grpc.health.v1 of the picker: what gateways and charts probe.

    ""  and  liveness                                  the process answers
    readiness, inference-extension, ext_proc's name    a worker is up, or may be waited for, and the
                                                       gateway is not draining
    any other                                          NOT_FOUND

A draining gateway is not ready and goes on serving its streams.
"""

from collections.abc import Callable

from google.protobuf.message import DecodeError

from gateway.epp.stream import INVALID_ARGUMENT, OK, Answer, Service, unary
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

CHECK = b"/grpc.health.v1.Health/Check"
EXT_PROC = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LIVE = frozenset({"", "liveness"})
READY = frozenset({"readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"})

SERVING, NOT_SERVING = 1, 2
NOT_FOUND = 5


def service_of(is_ready: Callable[[], bool]) -> Service:
    """The service at /grpc.health.v1.Health/Check."""
    return unary(lambda message: check(message, is_ready))


def check(message: bytes, is_ready: Callable[[], bool]) -> Answer:
    """Answer a HealthCheckRequest."""
    try:
        service = pb.HealthRequest.FromString(message).service
    except DecodeError:
        return INVALID_ARGUMENT, b"the message is not a HealthCheckRequest"
    if service not in LIVE and service not in READY:
        known = ", ".join(sorted(LIVE | READY)[1:])
        return NOT_FOUND, f"no service '{service[:80]}'; known: {known}".encode()
    is_serving = service in LIVE or is_ready()
    return OK, bytes(pb.HealthReply(status=SERVING if is_serving else NOT_SERVING).SerializeToString())
