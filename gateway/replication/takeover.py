"""What one who wrote a worker's log leaves to the next: an inventory, and where the engine's stream is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import Position, Reset, StreamCounts
from gateway.core.kv_events import DecodeError
from gateway.index.inventory import Inventory
from gateway.replication.codec import decode
from gateway.replication.follower import Cursor, Follower, LogError
from gateway.replication.messages import SnapshotPart, Status, Update


@dataclass(slots=True, eq=False)
class Heritage:
    """`position` is None where the log ends inside a batch of the engine's."""

    inventory: Inventory
    cursor: Cursor
    position: Position | None
    status: Status


def inherit(
    root: BlockHash, block_size: int, parts: Sequence[bytes], log: Iterable[tuple[int, bytes]]
) -> Heritage | None:
    """Of a snapshot and the messages behind it, each with its epoch; None where that is not whole. Takes
    a second for a million blocks, in any thread."""
    inventory, follower = Inventory(root, block_size), Follower(StreamCounts())
    is_whole = False
    try:
        for part in map(decode, parts):
            is_whole = isinstance(part, SnapshotPart) and part.is_last
            _take(inventory, follower, part)
        for epoch, data in log if is_whole else ():
            if epoch != follower.cursor.epoch:
                return None
            _take(inventory, follower, decode(data))
    except (DecodeError, LogError):
        return None
    if not is_whole or inventory.applied.num_orphans:
        return None
    return Heritage(inventory, follower.cursor, follower.handover, follower.status)


def _take(inventory: Inventory, follower: Follower, update: Update) -> None:
    for change in follower.take(update):
        if isinstance(change, Reset):
            inventory.reset()
        else:
            inventory.apply(change)
