"""What gateways tell each other of their bookings: one message, as it goes through Redis.

All of it can be lost without harm. What is booked at a worker is told as it is, not as it changed, and once a
second all of it. No time of any clock is in it, only how long from now: clocks of gateways may differ.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from gateway.core.blocks import BlockHash
from gateway.core.decoding import UNREADABLE
from gateway.core.worker import WorkerId

SNAPSHOT_S = 1.0
"""Between two messages that tell all."""
KEEP_S = 3.5
"""After the last word of a gateway its bookings are dropped: three of its messages were lost, or it died."""
MAX_BYTES = 1 << 20
"""Of a message: thousands of workers and all promises of a gateway take a third of it."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Some = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class Booked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """In flight at one worker, of one gateway."""

    worker: _Name
    num_in_flight: _Some
    booked_tokens: _Some

    @property
    def id(self) -> WorkerId:
        return WorkerId(self.worker)


class Promise(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks that a worker will hold (`promises.py`), for so long from now on; 0 takes them back."""

    worker: _Name
    blocks: list[BlockHash]
    keep_ms: Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]


class Told(msgspec.Struct, frozen=True, array_like=True):
    """`host`: processes with the same one know of each other already. `seq` counts a gateway's messages.
    `turn` is the one that ends with these bookings (`--booking atomic`), 0 outside of turns.

    is_whole  what is not in `booked` is nothing
    is_last   the gateway ends
    asks      for everybody's whole, by one who has just begun to hear
    """

    host: _Number
    gateway: _Number
    seq: _Number
    booked: list[Booked] = []
    promises: list[Promise] = []
    turn: _Number = 0
    is_whole: bool = False
    is_last: bool = False
    asks: bool = False


encode: Callable[[Told], bytes] = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


def decode(data: bytes) -> Told | None:
    """None for what is no such message."""
    if len(data) > MAX_BYTES:
        return None
    try:
        told = _decode(data)
    except UNREADABLE:
        return None
    is_right = all(0 <= block < 2**64 for promise in told.promises for block in promise.blocks)
    return told if is_right else None
