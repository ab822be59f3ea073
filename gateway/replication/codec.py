"""Protobuf encoding of replication messages: `proto/kvgate/v1/kv_events.proto`."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.message import DecodeError as ProtobufError

from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.event_stream import AWAITING_PROOF, Position, StreamState
from gateway.core.kv_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    DecodeError,
    KvEvent,
    RunStored,
    num_blocks,
)
from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from gateway.replication.messages import AgentHello, AgentStatus, BlockSample, LogBatch, SnapshotPart, Update

SERVICE = "kvgate.v1.KvEvents"
MAX_MESSAGE_BYTES = 512 << 10
"""Largest message. Agents and gateways send a tenth of it: at most some 3,000 blocks of 16 bytes."""
MAX_UPDATE_BLOCKS = 1 << 14
"""Blocks in one message, which is applied in one go."""
MAX_NAME = 128
"""Characters in the name of a medium or of a kind of group: they are kept as long as the worker is."""
MAX_REASON_CHARS = 300
"""Characters of an agent's status reason, which is logged and kept."""

_STATES = {
    StreamState.EXACT: pb.Status.EXACT,
    StreamState.CATCHING_UP: pb.Status.CATCHING_UP,
    StreamState.BLIND: pb.Status.BLIND,
}
"""States as they are sent; UNPROVEN is sent as BLIND with its reason, as gateways before it understand."""
_NO_TOKENS = tokens_of(())


def encode(update: Update) -> bytes:
    message = pb.Update()
    match update:
        case AgentHello():
            message.hello.CopyFrom(_hello_message(update))
        case SnapshotPart():
            part = message.snapshot
            part.epoch, part.next_seq = update.epoch, update.next_seq
            part.part, part.is_last = update.part, update.is_last
            _fill(part, update.changes, update.position)
        case LogBatch():
            message.batch.epoch, message.batch.seq = update.epoch, update.seq
            _fill(message.batch, update.changes, update.position)
        case AgentStatus():
            message.status.CopyFrom(_status_message(update))
        case BlockSample():
            sample = message.sample
            sample.epoch, sample.next_seq = update.epoch, update.next_seq
            sample.num_blocks = update.num_blocks
            sample.path.extend(update.path)
    return bytes(message.SerializeToString())


def decode(data: bytes) -> Update:
    """Decode an update. Raises DecodeError, also for unknown kinds of updates and changes."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"update of {len(data):,} bytes exceeds {MAX_MESSAGE_BYTES:,}")
    message = _parse(pb.Update(), data)
    match message.WhichOneof("kind"):
        case "hello":
            return _hello(message.hello)
        case "snapshot":
            part = message.snapshot
            changes, position = _changes(part), _position(part)
            return SnapshotPart(part.epoch, part.next_seq, part.part, part.is_last, changes, position)
        case "batch":
            batch = message.batch
            return LogBatch(batch.epoch, batch.seq, _changes(batch), _position(batch))
        case "status":
            return _status(message.status)
        case "sample":
            sample = message.sample
            return BlockSample(sample.epoch, sample.next_seq, sample.num_blocks, list(sample.path))
    raise DecodeError("unknown kind of update: is the agent newer than this gateway?")


def encode_hello(hello: AgentHello) -> bytes:
    return bytes(_hello_message(hello).SerializeToString())


def decode_hello(data: bytes) -> AgentHello:
    return _hello(_parse(pb.Hello(), data))


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Request of a reader (Subscribe). A DescribeRequest has the same first fields; the rest is 0."""

    version: int
    dp_rank: int
    epoch: int = 0
    next_seq: int = 0
    sample_every_s: int = 0


def encode_request(request: LogRequest) -> bytes:
    return bytes(pb.SubscribeRequest(**asdict(request)).SerializeToString())


def decode_request(data: bytes) -> LogRequest:
    message = _parse(pb.SubscribeRequest(), data)
    return LogRequest(
        message.version, message.dp_rank, message.epoch, message.next_seq, message.sample_every_s
    )


def _parse(message: Any, data: bytes) -> Any:
    try:
        message.ParseFromString(data)
    except ProtobufError as exc:
        raise DecodeError(f"{message.DESCRIPTOR.full_name}: {exc}") from exc
    return message


def _hello_message(hello: AgentHello) -> Any:
    return pb.Hello(
        version=hello.version,
        agent=hello.agent,
        engine_url=hello.engine_url,
        start_time_s=hello.start_time_s,
        dp_rank=hello.dp_rank,
        block_size=hello.block_size,
        root=hello.root,
        status=_status_message(hello.status),
        num_blocks=hello.num_blocks,
    )


def _hello(message: Any) -> AgentHello:
    return AgentHello(
        engine_url=message.engine_url,
        dp_rank=message.dp_rank,
        block_size=message.block_size,
        root=BlockHash(message.root),
        status=_status(message.status),
        start_time_s=message.start_time_s,
        num_blocks=message.num_blocks,
        agent=message.agent,
        version=message.version,
    )


def _status_message(status: AgentStatus) -> Any:
    return pb.Status(state=_STATES.get(status.state, pb.Status.BLIND), reason=status.reason)


def _status(message: Any) -> AgentStatus:
    for state, number in _STATES.items():
        if message.state == number:
            reason = message.reason[:MAX_REASON_CHARS]
            is_unproven = state is StreamState.BLIND and reason.startswith(AWAITING_PROOF)
            return AgentStatus(StreamState.UNPROVEN if is_unproven else state, reason)
    raise DecodeError(f"unknown state {message.state} in a status")


def _fill(message: Any, changes: Iterable[KvEvent], position: Position | None) -> None:
    for change in changes:
        _add(message.changes.add(), change)
    if position is not None:
        at = message.position
        at.next_seq, at.digest, at.ts = position.next_seq, position.digest, position.ts
        at.SetInParent()


def _position(message: Any) -> Position | None:
    if not message.HasField("position"):
        return None
    at = message.position
    return Position(at.next_seq, at.digest, at.ts)


def _add(message: Any, change: KvEvent) -> None:
    match change:
        case RunStored():
            run = message.stored
            run.blocks.extend(change.blocks)
            run.names.extend(change.engine_hashes)
            if change.parent is not None:
                run.parent = change.parent
            run.parent_block, run.medium, run.group = change.before, change.medium, change.group_idx
        case BlocksStored() if not change.tokens and change.block_size:
            grouped = message.grouped
            grouped.names.extend(change.engine_hashes)
            grouped.medium, grouped.group, grouped.kind = change.medium, change.group_idx, change.spec_kind
            grouped.block_size, grouped.window = change.block_size, change.window or 0
        case BlocksStored() if not change.tokens:
            copied = message.copied
            copied.names.extend(change.engine_hashes)
            copied.medium, copied.group = change.medium, change.group_idx
        case BlocksRemoved():
            removed = message.removed
            removed.names.extend(change.engine_hashes)
            removed.medium, removed.group = change.medium, change.group_idx
        case BlocksCleared():
            message.cleared.SetInParent()
        case _:
            raise TypeError(f"no wire format for {type(change).__name__}")


def _changes(message: Any) -> list[KvEvent]:
    changes = [_change(change) for change in message.changes]
    if (num := sum(map(num_blocks, changes))) > MAX_UPDATE_BLOCKS:
        raise DecodeError(f"update of {num:,} blocks exceeds {MAX_UPDATE_BLOCKS:,}")
    if any(_is_long(change) for change in changes):
        raise DecodeError(f"name of a medium or group exceeds {MAX_NAME} characters")
    return changes


def _is_long(change: KvEvent) -> bool:
    if isinstance(change, BlocksStored):
        return len(change.medium) > MAX_NAME or len(change.spec_kind or "") > MAX_NAME
    return isinstance(change, RunStored | BlocksRemoved) and len(change.medium) > MAX_NAME


def _change(message: Any) -> KvEvent:
    match message.WhichOneof("kind"):
        case "stored":
            run = message.stored
            parent = run.parent if run.HasField("parent") else None
            return RunStored(
                list(run.blocks), list(run.names), parent, run.parent_block, run.medium, run.group
            )
        case "copied":
            copied = message.copied
            names = list(copied.names)
            return BlocksStored(
                names, None, _NO_TOKENS, 0, None, copied.medium, copied.group, "full_attention"
            )
        case "grouped":
            grouped = message.grouped
            return BlocksStored(
                list(grouped.names),
                None,
                _NO_TOKENS,
                grouped.block_size,
                None,
                grouped.medium,
                grouped.group,
                grouped.kind,
                grouped.window or None,
            )
        case "removed":
            removed = message.removed
            return BlocksRemoved(list(removed.names), removed.medium, removed.group)
        case "cleared":
            return BlocksCleared()
    raise DecodeError("unknown kind of change: is the agent newer than this gateway?")
