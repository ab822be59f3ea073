"""Header blocks: put together from fragments; what is written, hpack reads."""

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2 import frames
from gateway.server.http2.frames import Frame, Http2Error
from gateway.server.http2.header_block import BlockIntake, literal


@given(
    st.binary(min_size=1, max_size=40),
    st.one_of(st.binary(max_size=40), st.just(b"v" * 127), st.just(b"v" * 40_000)),
)
def test_hpack_reads_literals(name: bytes, value: bytes) -> None:
    ((read_name, read_value),) = Decoder().decode(literal(name, value), raw=True)
    assert (read_name, read_value) == (name, value)


def test_a_block_is_put_together_from_fragments() -> None:
    blocks = BlockIntake(10, 3)
    assert blocks.begin(Frame(1, frames.END_HEADERS, 1, b"whole")) == b"whole" and blocks.first is None
    assert blocks.begin(Frame(1, 0, 1, b"a")) is None and blocks.first is not None
    assert blocks.add(Frame(9, 0, 1, b"b")) is None
    assert blocks.add(Frame(9, frames.END_HEADERS, 1, b"c")) == b"abc" and blocks.first is None


@pytest.mark.parametrize("fragments", [[b"12345", b"678901"], [b"", b"", b"", b""], [b"12345678901"]])
def test_a_block_is_bounded_in_bytes_and_parts(fragments: list[bytes]) -> None:
    blocks = BlockIntake(10, 3)
    with pytest.raises(Http2Error, match="too large"):
        blocks.begin(Frame(1, 0, 1, fragments[0]))
        for fragment in fragments[1:]:
            blocks.add(Frame(9, 0, 1, fragment))
