"""What is told of one worker's blocks to those who follow: a snapshot and a log, one format.

As `proto/kvgate/v1/kv_events.proto` has them on the wire, where each field is explained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import KvEvent

VERSION = 1


@dataclass(frozen=True, slots=True)
class Status:
    state: StreamState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who tells, and of what. `start_time_s` is 0 where the engine does not say when it started."""

    engine_url: str
    dp_rank: int
    block_size: int
    root: BlockHash
    status: Status
    start_time_s: float = 0.0
    num_blocks: int = 0
    agent: str = ""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Part 0 begins with an empty worker; behind the last comes batch `next_seq`."""

    epoch: int
    next_seq: int
    part: int
    is_last: bool
    changes: Sequence[KvEvent]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class LogBatch:
    """`position` is None where the next batch has more of the same batch of the engine's."""

    epoch: int
    seq: int
    changes: Sequence[KvEvent]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A part of what is held behind batch `next_seq` - 1, to be compared: how many blocks, and the first of
    a line of them."""

    epoch: int
    next_seq: int
    num_blocks: int
    path: Sequence[BlockHash]


Update: TypeAlias = Hello | SnapshotPart | LogBatch | Status | Sample
