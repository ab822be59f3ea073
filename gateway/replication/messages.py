"""Messages that replicate one worker's blocks to followers: a snapshot and a log, in one format.

`proto/kvgate/v1/kv_events.proto` defines them on the wire, and explains each field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Position, StreamState
from gateway.core.kv_events import KvEvent

VERSION = 1


@dataclass(frozen=True, slots=True)
class AgentStatus:
    state: StreamState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Introduction of an agent and the worker it reports on. `start_time_s` is 0 where the engine's start is
    unknown."""

    engine_url: str
    dp_rank: int
    block_size: int
    root: BlockHash
    status: AgentStatus
    start_time_s: float = 0.0
    num_blocks: int = 0
    agent: str = ""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Part of a snapshot. Part 0 begins with an empty worker; batch `next_seq` follows the last part."""

    epoch: int
    next_seq: int
    part: int
    is_last: bool
    changes: Sequence[KvEvent]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Changes of one batch in the log. `position` is None where the next batch continues the same engine
    batch."""

    epoch: int
    seq: int
    changes: Sequence[KvEvent]
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class BlockSample:
    """Sample of the blocks held behind batch `next_seq` - 1, for comparison: their number, and a prefix of
    some of them."""

    epoch: int
    next_seq: int
    num_blocks: int
    path: Sequence[BlockHash]


Update: TypeAlias = AgentHello | SnapshotPart | LogBatch | AgentStatus | BlockSample
