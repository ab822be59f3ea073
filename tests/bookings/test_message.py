import msgspec
import pytest

from gateway.bookings.message import MAX_BYTES, BookingsMessage, Promise, WorkerBookings, decode, encode
from gateway.core.blocks import BlockHash

MESSAGE = BookingsMessage(
    1,
    2,
    3,
    [WorkerBookings("w:1", 4, 500)],
    [Promise("w:1", [BlockHash(2**64 - 1)], 3500)],
    lock_number=7,
    is_whole=True,
)


def test_a_message_survives_encoding() -> None:
    assert decode(encode(MESSAGE)) == MESSAGE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        encode(MESSAGE)[:-1],
        msgspec.msgpack.encode({"host": 1}),
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode([1, 2, 3, [["w:1", -1, 0]]]),
        msgspec.msgpack.encode([1, 2, 3, [["w:1", 1, 2**63]]]),
        msgspec.msgpack.encode([1, 2, 3, [["", 1, 1]]]),
        msgspec.msgpack.encode([1, 2, 3, [], [["w:1", [-1], 5]]]),
        msgspec.msgpack.encode([1, 2, 3, [], [["w:1", ["a"], 5]]]),
        msgspec.msgpack.encode([1, 2, 3, [], [["w:1", [1], -5]]]),
    ],
)
def test_a_malformed_message_is_none(data: bytes) -> None:
    assert decode(data) is None


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    fields = msgspec.msgpack.decode(encode(MESSAGE))
    assert decode(msgspec.msgpack.encode([*fields, "more"])) == MESSAGE


def test_a_message_is_bounded() -> None:
    message = BookingsMessage(1, 2, 3, [WorkerBookings("w" * 300, 1, 1)] * 4000)
    assert len(encode(message)) > MAX_BYTES and decode(encode(message)) is None
