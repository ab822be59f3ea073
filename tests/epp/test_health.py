"""Health checks, by their bytes on the wire: field 1 of each message (grpc/health/v1/health.proto)."""

import pytest

from gateway.epp.health import service_of
from tests.support.ext_proc import FakeStream


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize(
    ("service", "is_live"),
    [
        ("", True),
        ("liveness", True),
        ("readiness", False),
        ("inference-extension", False),
        ("envoy.service.ext_proc.v3.ExternalProcessor", False),
    ],
)
def test_each_service_has_its_answer(service: str, is_live: bool, is_ready: bool) -> None:
    stream = FakeStream()
    handler = service_of(lambda: is_ready)(stream)
    handler.message(b"\x0a%c%b" % (len(service), service.encode()) if service else b"")
    handler.half_closed()
    handler.aborted("reset")
    assert stream.sent == [b"\x08\x01" if is_live or is_ready else b"\x08\x02"]  # SERVING, NOT_SERVING
    assert stream.finished == (0, "")


@pytest.mark.parametrize(("message", "status"), [(b"\x0a\x01x", 5), (b"\xff", 3)])
def test_unknown_services_and_garbage_are_refused(message: bytes, status: int) -> None:
    stream = FakeStream()
    handler = service_of(lambda: True)(stream)
    handler.message(message)
    handler.message(message)
    assert stream.finished is not None and stream.finished[0] == status and not stream.sent


def test_a_check_without_a_message_is_refused() -> None:
    stream = FakeStream()
    service_of(lambda: True)(stream).half_closed()
    assert stream.finished is not None and stream.finished[0] == 3
