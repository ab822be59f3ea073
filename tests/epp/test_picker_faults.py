"""Faults around a pick: refusals in the middle of a body, late workers, hostile numbers, names of
workers that DNS does not know or moves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.config.epp import EppSection
from gateway.epp.addresses import FRESH_S, Addresses
from gateway.epp.messages import BodyMode
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from tests.support.ext_proc import (
    DUPLEX,
    POST,
    request_body,
    request_headers,
    response_body,
    response_headers,
    trailers,
)
from tests.support.worlds.endpoint_picks import (
    BODY,
    DESTINATION,
    EVENT,
    W1,
    W2,
    Epp,
    destination,
    refusal,
    resolve_as,
)
from tests.support.worlds.exchanges import InlineTasks

OFFER: list[Header] = [
    (b":method", b"GET"),
    (b":path", b"/v1/realtime?model=m"),
    (b"connection", b"upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]


@pytest.fixture
def epp(monkeypatch: pytest.MonkeyPatch) -> Epp:
    return Epp(monkeypatch, W1, W2)


def kinds(messages: list[pb.ProcessingResponse]) -> list[str | None]:
    return [each.WhichOneof("response") for each in messages]


@pytest.mark.parametrize("last", [request_body(b"x", is_end=True), trailers()])
def test_the_rest_of_a_refused_body_is_dropped_in_silence(
    epp: Epp, last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    picker, stream = epp.stream()
    for message in (request_headers(), *[request_body(b"x" * 400)] * 4, last):
        picker.message(message)
    assert refusal(stream.take())[0] == 413 and stream.finished is None
    assert not epp.door.counts["malformed"] and "ended" not in caplog.text and epp.is_free


def test_the_rest_of_a_redirect_is_dropped_in_silence(epp: Epp) -> None:
    picker, stream = epp.picked()
    stream.take()
    for message in (response_headers(307), response_body(b"moved"), response_body(b"", is_end=True)):
        picker.message(message)
    assert refusal(stream.take())[0] == 502 and stream.finished is None
    assert not epp.door.counts["malformed"] and epp.is_free


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED_PARTIAL, 5, 77])
def test_a_part_of_a_body_is_not_taken_for_the_whole(epp: Epp, mode: int) -> None:
    picker, stream = epp.stream()
    for message in (request_headers(modes=(mode, BodyMode.NONE)), request_body(BODY[:9])):
        picker.message(message)
    assert kinds(stream.take()) == ["request_headers", "request_body"]
    assert epp.door.counts == {"unsupported_mode": 1, "untrusted_header": 0} or epp.door.counts == {
        "unsupported_mode": 1
    }


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE])
def test_an_unread_request_keeps_no_destination_of_its_client(epp: Epp, mode: BodyMode) -> None:
    own = [(DESTINATION.encode(), b"10.6.6.6:1"), (b"x-llm-d-inference-objective", b"first")]
    picker, stream = epp.stream()
    picker.message(request_headers([*POST, *own, own[0]], modes=(mode, BodyMode.NONE)))
    (head,) = stream.take()
    removed = head.request_headers.response.header_mutation.remove_headers
    assert list(removed) == [DESTINATION, "x-llm-d-inference-objective"]
    assert epp.door.counts["spoofed_header"] == 2


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_websocket_is_picked_in_each_mode(epp: Epp, mode: BodyMode) -> None:
    picker, stream = epp.stream()
    picker.message(request_headers(OFFER, modes=(mode, mode)))
    assert destination(stream.take()[0]) == W1
    picker.message(response_headers(101, []))
    picker.half_closed()
    assert not epp.door.counts["unsupported_mode"]


@pytest.mark.parametrize("port", ["\u00b2", "\u0662", "9" * 5000, "-1", ""])
def test_a_subset_with_an_impossible_port_names_no_worker(epp: Epp, port: str) -> None:
    _, stream = epp.picked(subset=f"10.0.0.1:{port}")
    assert refusal(stream.take())[0] == 503 and epp.is_free


def test_a_selection_of_a_client_in_other_digits_names_no_worker(epp: Epp) -> None:
    epp.door.options = EppSection(conformance=True)
    own = (b"test-epp-endpoint-selection", "10.0.0.1:\u00b2".encode("latin-1"))
    _, stream = epp.picked(headers=[*POST, own])
    assert refusal(stream.take())[0] == 503 and epp.is_free


@pytest.mark.parametrize("value", [b"9" * 5000, b"-1", b"\xb2", b""])
@pytest.mark.parametrize("name", [b":status", b"content-length"])
def test_numbers_of_an_answer_may_be_anything(epp: Epp, name: bytes, value: bytes) -> None:
    picker, stream = epp.picked()
    stream.take()
    message = pb.ProcessingRequest()
    for each in ({b":status": b"200"} | {name: value}).items():
        message.response_headers.headers.headers.add(key=each[0].decode(), raw_value=each[1])
    picker.message(message.SerializeToString())
    picker.message(response_body(b"{}", is_end=True))
    assert kinds(stream.take()) == ["response_headers", "response_body"]
    assert stream.finished is None and epp.is_free


def test_a_worker_without_a_first_byte_in_time_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1, first_byte_timeout_s=3.0)
    picker, stream = epp.picked()
    stream.take()
    epp.loop.advance(3.0)
    status, headers, _ = refusal(stream.take())
    assert status == 504 and headers["x-kvgate-dropped-reason"] == "worker_timeout" and epp.is_free
    picker.message(response_headers())
    picker.half_closed()
    assert not stream.sent and epp.is_free


@pytest.mark.parametrize("option", ["idle_timeout_s", "total_timeout_s"])
@pytest.mark.parametrize("seen", [EVENT, EVENT[:-9]])
def test_an_answer_that_exceeds_its_time_is_cut_and_passes_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, option: str, seen: bytes
) -> None:
    epp = Epp(monkeypatch, W1, **{option: 3.0})
    picker, stream = epp.picked()
    for message in (response_headers(), response_body(seen)):
        picker.message(message)
    stream.take()
    epp.loop.advance(3.0)
    (cut,) = stream.take()
    assert cut.immediate_response.status.code == 502 and epp.is_free
    picker.message(response_body(EVENT, is_end=True))
    assert not stream.sent and stream.finished is None


def test_a_held_booking_that_exceeds_its_time_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1, total_timeout_s=3.0)
    picker, stream = epp.picked(modes=(DUPLEX, BodyMode.NONE))
    picker.message(response_headers())
    picker.half_closed()
    stream.take()
    for _ in range(4):
        epp.loop.advance(1.0)
    assert not stream.sent and epp.is_free


@pytest.mark.parametrize("num_messages", [1, 2])
def test_an_answer_of_envoy_before_the_pick_frees_all(epp: Epp, num_messages: int) -> None:
    picker, stream = epp.stream()
    for message in (request_headers(), request_body(BODY))[:num_messages]:
        picker.message(message)
    picker.message(response_headers(408, []))
    picker.message(response_body(b"late", is_end=True))
    assert kinds(stream.take()) == ["response_headers", "response_body"]
    picker.half_closed()
    assert epp.is_free


# workers by name -------------------------------------------------------------------------------


def run(tasks: InlineTasks, name: str, coro: Coroutine[Any, Any, Any]) -> None:
    """Run a task to its end on a loop of its own."""
    asyncio.run(coro)


def named(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> Epp:
    epp = Epp(monkeypatch, "w1:8000", "w2:8000")
    epp.door.addresses = Addresses(resolve_as(names))
    monkeypatch.setattr(InlineTasks, "start", run)
    return epp


def test_the_first_pick_of_a_name_waits_for_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = named(monkeypatch, {"w1": "10.0.0.1"})
    _, stream = epp.picked()
    assert destination(stream.take()[0]) == W1
    _, stream = epp.picked()
    status, _, body = refusal(stream.take())
    assert status == 503 and body["error"]["code"] == "no_worker" and epp.in_flight() == 1


def test_a_worker_that_moved_is_picked_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"w1": "10.0.0.1", "w2": "10.0.0.2"}
    epp = named(monkeypatch, names)
    for expected in (W1, W2):
        assert destination(epp.picked()[1].take()[0]) == expected
    names["w1"] = "10.0.0.7"
    epp.loop.advance(FRESH_S)
    found = [destination(epp.picked()[1].take()[0]) for _ in range(4)]
    assert found[0] == W1 and found[2] == "10.0.0.7:8000", "looked up at the first pick, used from the next"


def test_a_subset_is_compared_with_the_addresses_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = named(monkeypatch, {"w1": "10.0.0.1", "w2": "10.0.0.2"})
    for _ in range(3):
        assert destination(epp.picked(subset=W2)[1].take()[0]) == W2
    assert refusal(epp.picked(subset="10.0.0.9")[1].take())[0] == 503


def test_a_name_without_an_address_is_outside_each_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = named(monkeypatch, {"w2": "10.0.0.2"})
    for _ in range(2):
        assert destination(epp.picked(subset=[W1, W2])[1].take()[0]) == W2


@pytest.mark.parametrize("is_late", [False, True])
def test_a_look_up_that_lasts_too_long_leaves_nothing(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    epp = named(monkeypatch, {"w1": "10.0.0.1", "w2": "10.0.0.2"})
    waiting: list[Coroutine[Any, Any, Any]] = []
    monkeypatch.setattr(InlineTasks, "start", lambda self, name, coro: waiting.append(coro))
    picker, stream = epp.picked(subset=W1)
    assert not stream.sent
    if is_late:
        epp.loop.advance(10.0)
        assert refusal(stream.take())[0] == 503
    else:
        picker.half_closed()
    asyncio.run(waiting.pop())
    assert not stream.sent and epp.is_free


def test_a_booking_moves_to_a_named_worker_that_served(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = named(monkeypatch, {"w1": "10.0.0.1", "w2": "10.0.0.2"})
    for _ in range(2):
        epp.picked()
    picker, _ = epp.picked()
    picker.message(response_headers(served=W2))
    loads = [epp.router.ledger.load(m.worker.id).num_in_flight for m in epp.router.fleet]
    assert loads == [1, 2] and epp.door.counts["served_elsewhere"] == 1
