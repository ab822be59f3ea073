"""Messages by which gateways publish their bookings through Redis.

Any of them can be lost without harm: a worker's bookings are sent as totals, not as changes, and once a
second all of them. They contain no time of any clock, only durations from now: clocks of gateways may differ.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from gateway.core.blocks import BlockHash
from gateway.core.decode_errors import UNREADABLE
from gateway.core.worker import WorkerId

SNAPSHOT_S = 1.0
"""Time between two snapshots."""
KEEP_S = 3.5
"""Time after the last message of a gateway when its bookings are dropped: three messages were lost, or it
died."""
MAX_BYTES = 512 << 10
"""Largest message: thousands of workers and all promises of a gateway take two thirds of it."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Some = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class WorkerBookings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Totals of one gateway in flight at one worker."""

    worker: _Name
    num_in_flight: _Some
    booked_tokens: _Some

    @property
    def id(self) -> WorkerId:
        return WorkerId(self.worker)


class Promise(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks that a worker will hold (`promises.py`), for `keep_ms` from now on; 0 withdraws them."""

    worker: _Name
    blocks: list[BlockHash]
    keep_ms: Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]


class BookingsMessage(msgspec.Struct, frozen=True, array_like=True):
    """Message with a gateway's bookings.

    `host`: processes with the same one share memory. `seq` counts a gateway's messages. `lock_number` is the
    acquisition that ends with these bookings (`--booking atomic`), 0 without the lock.

    is_whole  a snapshot: workers missing in `booked` have nothing
    is_last   the gateway ends
    asks      requests everyone's snapshot, for a process that has just subscribed
    """

    host: _Number
    gateway: _Number
    seq: _Number
    booked: list[WorkerBookings] = []
    promises: list[Promise] = []
    lock_number: _Number = 0
    is_whole: bool = False
    is_last: bool = False
    asks: bool = False


encode: Callable[[BookingsMessage], bytes] = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BookingsMessage).decode


def decode(data: bytes) -> BookingsMessage | None:
    """Decode a message; None for anything else."""
    if len(data) > MAX_BYTES:
        return None
    try:
        message = _decode(data)
    except UNREADABLE:
        return None
    # msgpack's integers end below 2**64
    return message if all(min(promise.blocks, default=0) >= 0 for promise in message.promises) else None
