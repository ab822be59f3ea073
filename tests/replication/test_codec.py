"""The log on the wire: round trips, and unreadable messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.event_stream import AWAITING_PROOF, Position, StreamState
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    KvEvent,
    RunStored,
    UnknownEvent,
)
from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from gateway.replication import codec
from gateway.replication.messages import AgentHello, AgentStatus, BlockSample, LogBatch, SnapshotPart

U64 = st.integers(0, 2**64 - 1)
HASHES = st.lists(U64, max_size=5)
MEDIA = st.sampled_from(["GPU", "CPU", "DISK"])
GROUPS = st.integers(-1, 1000)
CHANGES = st.lists(
    st.one_of(
        st.builds(RunStored, HASHES, HASHES, st.none() | U64, U64, MEDIA, GROUPS),
        st.builds(
            lambda names, medium, group: BlocksStored(
                names, None, tokens_of(()), 0, None, medium, group, "full_attention"
            ),
            HASHES,
            MEDIA,
            GROUPS,
        ),
        st.builds(
            lambda names, size, medium, group, window: BlocksStored(
                names, None, tokens_of(()), size, None, medium, group, "sliding_window", window
            ),
            HASHES,
            st.integers(1, 2**32 - 1),
            MEDIA,
            GROUPS,
            st.none() | st.integers(1, 2**32 - 1),
        ),
        st.builds(BlocksRemoved, HASHES, MEDIA, GROUPS),
        st.just(BlocksCleared()),
    ),
    max_size=4,
)
POSITIONS = st.none() | st.builds(Position, U64, U64, st.floats(0, 1e12))
STATUSES = st.builds(
    AgentStatus,
    st.sampled_from([s for s in StreamState if s is not StreamState.UNPROVEN]),
    st.text(max_size=10),
) | st.builds(AgentStatus, st.just(StreamState.UNPROVEN), st.just(f"{AWAITING_PROOF}why"))
HELLOS = st.builds(
    AgentHello,
    st.just("http://127.0.0.1:8000"),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    U64,
    STATUSES,
    st.floats(0, 1e12),
    U64,
    st.text(max_size=10),
)
UPDATES = st.one_of(
    st.builds(LogBatch, U64, U64, CHANGES, POSITIONS),
    st.builds(SnapshotPart, U64, U64, st.integers(0, 2**32 - 1), st.booleans(), CHANGES, POSITIONS),
    STATUSES,
    HELLOS,
    st.builds(BlockSample, U64, U64, U64, HASHES),
)


@given(UPDATES)
def test_updates_survive_encoding(update: Any) -> None:
    assert codec.decode(codec.encode(update)) == update


@given(HELLOS)
def test_a_hello_survives_encoding(hello: AgentHello) -> None:
    assert codec.decode_hello(codec.encode_hello(hello)) == hello


def test_a_request_survives_encoding() -> None:
    request = codec.LogRequest(1, 2, 3, 4, 5)
    assert codec.decode_request(codec.encode_request(request)) == request
    assert codec.decode_request(
        pb.DescribeRequest(version=1, dp_rank=2).SerializeToString()
    ) == codec.LogRequest(1, 2)


@given(st.binary(max_size=60), UPDATES, st.data())
def test_other_bytes_are_rejected_or_decoded(junk: bytes, update: Any, data: st.DataObject) -> None:
    whole = codec.encode(update)
    cut = data.draw(st.integers(0, len(whole)))
    for text in (junk, whole[:cut], whole[:cut] + junk):
        for read in (codec.decode, codec.decode_hello, codec.decode_request):
            try:
                read(text)
            except DecodeError as exc:
                assert str(exc)


@pytest.mark.parametrize(
    "message",
    [
        pb.Update(),
        pb.Update(status=pb.Status(state=pb.Status.STATE_UNSPECIFIED)),
        pb.Update(batch=pb.Batch(changes=[pb.Change()])),
        pb.Update(snapshot=pb.SnapshotPart(changes=[pb.Change()])),
        pb.Update(hello=pb.Hello()),
    ],
)
def test_an_incomplete_message_is_rejected(message: Any) -> None:
    with pytest.raises(DecodeError, match="unknown"):
        codec.decode(message.SerializeToString())


def test_raw_engine_events_cannot_be_encoded() -> None:
    """Tokens never leave an agent; encoding them would be a mistake of its author."""
    for event in (UnknownEvent("x"), BlocksStored([1], None, tokens_of([5] * 16), 16)):
        with pytest.raises(TypeError):
            codec.encode(LogBatch(1, 0, [event]))


def test_a_block_costs_sixteen_bytes() -> None:
    run = RunStored([BlockHash(2**64 - i) for i in range(1, 1001)], list(range(1000)), None, BlockHash(1))
    assert len(codec.encode(LogBatch(1, 0, [run]))) < 16 * 1000 + 60


def test_reasons_of_an_agent_are_truncated() -> None:
    decoded = codec.decode(codec.encode(AgentStatus(StreamState.BLIND, "x" * 100_000)))
    assert decoded == AgentStatus(StreamState.BLIND, "x" * codec.MAX_REASON_CHARS)


@pytest.mark.parametrize(
    ("change", "update"),
    [
        (BlocksRemoved(range(codec.MAX_UPDATE_BLOCKS + 1)), "update of 16,385 blocks exceeds 16,384"),
        (BlocksRemoved(range(2**40, 2**40 + 120_000)), "update of .* bytes exceeds 524,288"),
        (BlocksRemoved([1], "G" * 129), "name of a medium or group exceeds 128"),
        (
            BlocksStored([1], None, tokens_of([]), 16, None, "CPU", 1, "k" * 129),
            "name of a medium or group exceeds 128",
        ),
    ],
)
def test_an_invalid_message_is_rejected(change: KvEvent, update: str) -> None:
    with pytest.raises(DecodeError, match=update):
        codec.decode(codec.encode(LogBatch(1, 0, [change])))


def test_gateways_that_do_not_know_an_unproven_stream_take_it_for_blind() -> None:
    sent = AgentStatus(StreamState.UNPROVEN, f"{AWAITING_PROOF}why")
    message = pb.Update.FromString(codec.encode(sent))
    assert (message.status.state, message.status.reason) == (pb.Status.BLIND, sent.reason)
