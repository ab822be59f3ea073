"""The worst of what was lost: tokens by cause and by what they have in common, the most first.

Bounded: where there is no more room the least goes, so what loses much stays, whatever else comes.
"""

from collections.abc import Hashable
from heapq import nlargest
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.attribution import Cause
from gateway.observability.cache_loss.break_location import Break

MAX_KEPT = 500
MAX_SHOWN = 20


class Offender(msgspec.Struct, omit_defaults=True):
    """`worker` computed what `holder` has or had. `avoided_tokens`: of what was routed away, by how much
    less work was ahead there than at the holder."""

    id: str
    cause: str
    model: str
    worker: WorkerId | None = None
    holder: WorkerId | None = None
    recomputed_tokens: int = 0
    recomputed_requests: int = 0
    avoided_tokens: int = 0
    broken: Break | None = None
    latest_decision: str = ""


class Offenders:
    """`max_kept` bounds their number."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: dict[str, Offender] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, cause: Cause, model: str, *key: Hashable) -> Offender | None:
        return self._kept.get(_name(cause, model, key))

    def add(
        self, cause: Cause, model: str, num_tokens: int, decision: str, *key: Hashable, **about: Any
    ) -> Offender:
        """Tokens of one request. Those of one cause, model and `key` are one; `about` are its fields."""
        name = _name(cause, model, key)
        offender = self._kept.get(name)
        if offender is None:
            if len(self._kept) >= self._max_kept:
                self._drop()
            offender = self._kept[name] = Offender(name, cause.value, model, **about)
        offender.recomputed_tokens += num_tokens
        offender.recomputed_requests += 1
        offender.latest_decision = decision
        return offender

    def worst(self, num: int = MAX_SHOWN) -> list[dict[str, Any]]:
        found = nlargest(num, self._kept.values(), key=lambda offender: offender.recomputed_tokens)
        told: list[dict[str, Any]] = msgspec.to_builtins(found)
        return told

    def _drop(self) -> None:
        """A tenth at a time: looking for the least costs as much for one as for many."""
        least = sorted(self._kept.values(), key=lambda offender: offender.recomputed_tokens)
        for offender in least[: max(self._max_kept // 10, 1)]:
            del self._kept[offender.id]


def _name(cause: Cause, model: str, key: tuple[Hashable, ...]) -> str:
    """The same in every process."""
    return xxh3_64_hexdigest(repr((cause.value, model, key)).encode("utf-8", "surrogatepass"))
