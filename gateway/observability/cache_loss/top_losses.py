"""Top losses: recomputed tokens grouped by cause and common key, the largest groups first.

The number of groups is bounded; a full table drops the smallest, so that large losses stay.
"""

from collections.abc import Hashable
from heapq import nlargest
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.attribution import LossCause
from gateway.observability.cache_loss.break_location import PrefixBreak

MAX_KEPT = 500
MAX_SHOWN = 20


class LossGroup(msgspec.Struct, omit_defaults=True):
    """A group of losses: `worker` computed tokens that `holder` has or had cached. `avoided_queue_tokens`:
    for requests routed away, the difference in work ahead between the holder and the worker."""

    id: str
    cause: str
    model: str
    worker: WorkerId | None = None
    holder: WorkerId | None = None
    recomputed_tokens: int = 0
    recomputed_requests: int = 0
    avoided_queue_tokens: int = 0
    prefix_break: PrefixBreak | None = None
    latest_decision_id: str = ""


class TopLosses:
    """The largest groups of losses, `max_kept` at most."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: dict[str, LossGroup] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, cause: LossCause, model: str, *key: Hashable) -> LossGroup | None:
        return self._kept.get(_name(cause, model, key))

    def add(
        self, cause: LossCause, model: str, num_tokens: int, decision: str, *key: Hashable, **about: Any
    ) -> LossGroup:
        """Add a request's tokens to the group of a cause, a model and `key`; `about` are its other fields."""
        name = _name(cause, model, key)
        offender = self._kept.get(name)
        if offender is None:
            if len(self._kept) >= self._max_kept:
                self._drop()
            offender = self._kept[name] = LossGroup(name, cause.value, model, **about)
        offender.recomputed_tokens += num_tokens
        offender.recomputed_requests += 1
        offender.latest_decision_id = decision
        return offender

    def worst(self, num: int = MAX_SHOWN) -> list[dict[str, Any]]:
        found = nlargest(num, self._kept.values(), key=lambda offender: offender.recomputed_tokens)
        shown: list[dict[str, Any]] = msgspec.to_builtins(found)
        return shown

    def _drop(self) -> None:
        """Drop the smallest tenth: finding one group costs as much as finding many."""
        least = sorted(self._kept.values(), key=lambda offender: offender.recomputed_tokens)
        for offender in least[: max(self._max_kept // 10, 1)]:
            del self._kept[offender.id]


def _name(cause: LossCause, model: str, key: tuple[Hashable, ...]) -> str:
    """The id of a group, equal in every process."""
    return xxh3_64_hexdigest(repr((cause.value, model, key)).encode("utf-8", "surrogatepass"))
