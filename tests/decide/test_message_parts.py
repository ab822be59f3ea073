"""Parts of a message, by protobuf as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decide.message_parts import MAX_APART_BYTES, apart, ids_of
from gateway.proto.kvgate.v1 import decide_pb2 as pb

TOKEN_IDS = 6


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40), st.text(max_size=5), st.booleans())
def test_a_field_comes_apart(ids: list[int], model: str, with_prefill: bool) -> None:
    message = pb.DecideRequest(model=model, token_ids=ids, exclude=[model], with_prefill=with_prefill)
    parts = apart(message.SerializeToString(), TOKEN_IDS)
    assert parts is not None and ids_of(parts[0]) == ids
    rest = pb.DecideRequest.FromString(parts[1])
    assert rest == pb.DecideRequest(model=model, exclude=[model], with_prefill=with_prefill)


@given(st.binary(max_size=30))
def test_numbers_are_read_as_protobuf_reads_them(packed: bytes) -> None:
    ids = ids_of(packed)
    if ids is not None:
        message = pb.DecideRequest.FromString(bytes((TOKEN_IDS << 3 | 2, len(packed))) + packed)
        assert list(message.token_ids) == ids


@pytest.mark.parametrize("packed", [b"\x80", b"\x01\xff", b"\xff\xff\xff\xff\x1f", b"\x80" * 5 + b"\x01"])
def test_numbers_that_do_not_end_or_are_too_long_are_left_to_protobuf(packed: bytes) -> None:
    assert ids_of(packed) is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x2a\x01m",
        b"\x32\x01\x01\x32\x01\x02",
        b"\x32\x81\x00\x01",
        b"\x32\x09\x01",
        b"\x32\x01\x01" + b"\x2a\x00" * MAX_APART_BYTES,
    ],
    ids=["nothing", "another field", "twice", "a padded length", "broken", "long"],
)
def test_what_is_not_there_once_does_not_come_apart(message: bytes) -> None:
    assert apart(message, TOKEN_IDS) is None
