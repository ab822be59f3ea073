"""Unary services: one message each way."""

from gateway.epp.stream import Answer, unary
from tests.support.ext_proc import FakeStream


def answer(message: bytes) -> Answer:
    return (0, message.upper()) if message else (3, b"nothing in it")


def test_a_message_is_answered_once_and_the_stream_ends() -> None:
    stream = FakeStream()
    handler = unary(answer)(stream)
    handler.message(b"a")
    handler.message(b"b")
    handler.half_closed()
    handler.aborted("reset")
    assert stream.sent == [b"A"] and stream.finished == (0, "")


def test_an_error_has_its_status_and_text() -> None:
    stream = FakeStream()
    unary(answer)(stream).message(b"")
    assert not stream.sent and stream.finished == (3, "nothing in it")


def test_a_call_without_a_message_is_refused() -> None:
    stream = FakeStream()
    unary(answer)(stream).half_closed()
    assert stream.finished == (3, "the method accepts one message per call")
