"""Injected faults: a plan in JSON, and the dice that follow it.

events        lost between engine and subscriber (a replay still has them), late, twice, out of order
replays       kept back: made as of now, but delivered with the next plan
connections   refused with a reset or a 503, or accepted and never answered, or lost with their requests
while
              probes are answered; cut after k chunks
blocks        so many, anywhere in the cache, are lost with the next plan, as after failed loads
engine        slower by a factor, or hanging: HTTP answers, steps do not end
prefill       refused; answered without transfer parameters; its pinned blocks are gone, or the whole
process
transfers     slower by a factor, or never answered; another number of prompt tokens than the other leg
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Frames: TypeAlias = tuple[bytes, bytes, bytes]


class Chance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chance of a fault: strikes the next `next` times for sure, then with `probability`."""

    next: int = 0
    probability: float = 0.0


class StreamCut(Chance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fault that resets a stream's TCP connection after `after_chunks` chunks of the response."""

    after_chunks: int = 1


class FaultPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan of all current faults; a new plan replaces the old one, `{}` heals. `delay_s` is the delay of late
    events.

    `exit` ends the process at once with that code. `restart_down_s` restarts the worker: connections are
    reset, ports stay closed for so long, then it is back with an empty cache and sequence number 0.
    """

    lose: Chance = Chance()
    delay: Chance = Chance()
    delay_s: float = 0.5
    duplicate: Chance = Chance()
    reorder: Chance = Chance()
    hold_replays: bool = False
    connections: Literal["accept", "reset", "503", "hang", "die"] = "accept"
    cut: StreamCut = StreamCut()
    slow: float = 1.0
    hang: bool = False
    fail_blocks: int = 0
    exit: int | None = None
    restart_down_s: float | None = None
    refuse_prefill: Chance = Chance()
    omit_params: Chance = Chance()
    drop_pinned: bool = False
    exit_after_prefill: bool = False
    slow_transfer: float = 1.0
    hang_transfer: bool = False
    extra_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("lose", "delay", "duplicate", "reorder", "cut", "refuse_prefill", "omit_params"):
            chance: Chance = getattr(self, name)
            if chance.next < 0 or not 0.0 <= chance.probability <= 1.0:
                raise ValueError(f"{name}: next must not be negative, probability from 0 to 1")
        if (
            min(self.slow, self.slow_transfer) <= 0
            or min(self.delay_s, self.cut.after_chunks, self.fail_blocks) < 0
        ):
            raise ValueError(
                "slow must be positive (slow_transfer too), delay_s, after_chunks, fail_blocks not negative"
            )


def parse_faults(data: bytes | str) -> FaultPlan:
    """Parse a plan. Raises msgspec.ValidationError with the path of the field at fault."""
    return msgspec.json.decode(data, type=FaultPlan)


class Dice:
    """Dice for one Chance, rolled again and again."""

    def __init__(self, chance: Chance, rng: random.Random) -> None:
        self._left = chance.next
        self._probability = chance.probability
        self._rng = rng

    def roll(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        return self._probability > 0 and self._rng.random() < self._probability


@dataclass(frozen=True, slots=True)
class Delivery:
    """Message on its way; `delay_s` holds up those behind it too."""

    frames: Frames
    delay_s: float = 0.0


class EventFaults:
    """Event faults: turns each published message into the deliveries to subscribers."""

    def __init__(self, faults: FaultPlan, rng: random.Random) -> None:
        self._lose = Dice(faults.lose, rng)
        self._delay = Dice(faults.delay, rng)
        self._duplicate = Dice(faults.duplicate, rng)
        self._reorder = Dice(faults.reorder, rng)
        self._delay_s = faults.delay_s
        self.holds_replays = faults.hold_replays
        self._overtaken: list[Delivery] = []

    def deliver(self, frames: Frames) -> Sequence[Delivery]:
        if self._lose.roll():
            return ()
        each = Delivery(frames, self._delay_s if self._delay.roll() else 0.0)
        deliveries = [each, each] if self._duplicate.roll() else [each]
        if self._reorder.roll():
            self._overtaken += deliveries  # until the next message has gone out
            return ()
        return [*deliveries, *self.release()]

    def release(self) -> Sequence[Delivery]:
        """Release messages that wait to be overtaken; call it when the plan changes."""
        overtaken, self._overtaken = self._overtaken, []
        return overtaken
