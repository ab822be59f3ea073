import pytest

from gateway.core.errors import TooManyRequests
from gateway.decide.replies import queued, rejected, requested, target_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb
from tests.support.fakes import worker


@pytest.mark.parametrize(
    ("name", "address"), [("10.0.0.1:8000", "10.0.0.1:8000"), ("w", "w:80"), ("[::1]:81", "[::1]:81")]
)
def test_a_target_has_an_address_to_connect_to(name: str, address: str) -> None:
    target = target_of(worker(name))
    assert (target.worker, target.address, target.url) == (name, address, f"http://{name}")


def test_only_what_differs_from_the_clients_request_is_in_the_reply() -> None:
    given = [(b"authorization", b"Bearer client"), (b"x-vllm-priority", b"1")]
    lines = [
        b"POST /base/v1 HTTP/1.1",
        b"authorization: Bearer worker",
        b"x-data-parallel-rank: 1",
        b"host: w",
    ]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    reply = pb.DecideReply()
    requested(reply, given, b"/v1", head, None)
    made = reply.decided
    assert made.path == "/base/v1" and not made.HasField("body")
    assert [(each.name, each.value) for each in made.set_headers] == [("x-data-parallel-rank", b"1")]
    assert list(made.remove_headers) == ["x-vllm-priority"]
    requested(reply, given, b"/v1", head, b"{}")
    assert made.body == b"{}"


def test_a_refusal_has_the_clients_whole_answer() -> None:
    error = TooManyRequests("full", code="queue_full", kind="overloaded", wait_s=2.5)
    made = rejected(429, [(b"retry-after", b"3")], b"{}", error).rejected
    assert (made.status, made.code, made.message, made.body) == (429, "queue_full", "full", b"{}")
    assert made.retry_after_s == error.retry_after_s and made.headers[0].value == b"3"
    assert rejected(200, [], b"{}", None).rejected.code == ""
    assert queued(1.5).queued.retry_after_s == 1.5
