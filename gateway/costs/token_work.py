"""Work in tokens: what is ahead of a request at a worker, and what loading cached blocks takes."""

from collections.abc import Mapping
from typing import Final

from gateway.core.decision import Candidate
from gateway.core.kv_events import SHARED
from gateway.core.ledger import REQUEST_TOKENS

SLOWEST: Final = 0.5

WORTH: Final[Mapping[str, float]] = {"CPU": 0.8, "DISK": 0.5, "STORAGE": 0.5}
"""The share of a block's computation that a copy in this medium saves (on the GPU: all). A rough default, and
an option, since it depends on model, bus and disk; the order matters most."""


def to_load(offloaded: Mapping[tuple[str, ...], int], worth: Mapping[str, float]) -> float:
    """Return the cost of loading offloaded blocks, in tokens to compute."""
    return sum(
        [
            tokens * (1 - max([_worth_of(medium, worth) for medium in media]))
            for media, tokens in offloaded.items()
        ]
    )


def _worth_of(medium: str, worth: Mapping[str, float]) -> float:
    """Return the worth of a medium; an unknown one counts as slow."""
    return worth.get(medium, worth.get(medium.partition(SHARED)[0], SLOWEST))


def work_ahead(candidate: Candidate) -> float:
    """Return the prompt tokens booked at a worker, and the cost of its running requests.

    Requests that the engine reports as waiting, beyond those of this gateway, count too.
    """
    num_requests = max(candidate.num_in_flight, candidate.num_waiting)
    return candidate.booked_tokens + REQUEST_TOKENS * num_requests
