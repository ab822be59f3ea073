"""Output of one stream, taken in any sizes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2.stream import COMPACT_AT, Http2Stream


def taken_from(stream: Http2Stream, size: int) -> bytes:
    out: list[bytes] = []
    stream.take(min(size, stream.num_outgoing), out)
    return b"".join(out)


@given(st.lists(st.binary(max_size=20), max_size=200), st.lists(st.integers(1, 60), max_size=200))
def test_parts_are_taken_in_order_in_any_sizes(parts: list[bytes], sizes: list[int]) -> None:
    stream, taken = Http2Stream(1, 0, 0), b""
    for index, part in enumerate(parts):
        stream.put(part[:2], part[2:])
        if index < len(sizes):
            taken += taken_from(stream, sizes[index])
    assert stream.num_outgoing == len(b"".join(parts)) - len(taken)
    taken += taken_from(stream, 1 << 20)
    assert taken == b"".join(parts) and stream.num_outgoing == 0


def test_sent_parts_are_not_kept() -> None:
    stream = Http2Stream(1, 0, 0)
    for _ in range(10 * COMPACT_AT):
        stream.put(b"ab", b"")
        stream.put(b"c", b"")
        taken_from(stream, 3 if stream.num_outgoing > 3 else 2)
    assert len(stream._parts) < 4 * COMPACT_AT + 4


def test_dropped_output_is_forgotten() -> None:
    stream = Http2Stream(1, 0, 0)
    stream.put(b"abc", b"")
    taken_from(stream, 1)
    assert stream.drop() == 2 and stream.num_outgoing == 0
    stream.put(b"d", b"")
    assert taken_from(stream, 9) == b"d"


def test_its_state_is_visible() -> None:
    stream = Http2Stream(7, 10, 0)
    assert repr(stream) == "Http2Stream(7, open, 0 bytes to send, window 10)"
    stream.is_remote_closed = True
    assert "half-closed" in repr(stream)
    stream.is_closed = True
    assert "closed" in repr(stream)
