"""Restoration of a worker's inventory and stream position from its log, at a take-over."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Position, Reset, StreamCounts
from gateway.core.kv_events import DecodeError
from gateway.index.inventory import Inventory
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.messages import AgentStatus, SnapshotPart, Update


@dataclass(slots=True, eq=False)
class Takeover:
    """State that the previous leader left in the log. `position` is None where the log ends inside an engine
    batch."""

    inventory: Inventory
    cursor: Cursor
    position: Position | None
    status: AgentStatus


def restore(
    root: BlockHash, block_size: int, parts: Sequence[bytes], log: Iterable[tuple[int, bytes]]
) -> Takeover | None:
    """Restore the state from a snapshot and the log entries (epoch, data) behind it; None if they are
    incomplete.

    Takes a second for a million blocks, in any thread.
    """
    inventory, follower = Inventory(root, block_size), Follower(StreamCounts())
    is_whole = False
    try:
        for part in map(decode, parts):
            is_whole = isinstance(part, SnapshotPart) and part.is_last
            _apply(inventory, follower, part)
        for epoch, data in log if is_whole else ():
            if epoch != follower.cursor.epoch:
                return None
            _apply(inventory, follower, decode(data))
    except (DecodeError, LogError):
        return None
    if not is_whole or inventory.applied.num_orphans:
        return None
    return Takeover(inventory, follower.cursor, follower.handover, follower.status)


def _apply(inventory: Inventory, follower: Follower, update: Update) -> None:
    for change in follower.advance(update):
        if isinstance(change, Reset):
            inventory.reset()
        else:
            inventory.apply(change)
