"""Leases of pinned blocks: finished prompts' blocks that wait for one fetch, for a limited time."""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PinnedBlocks:
    """Pinned blocks of one prompt. `digest` names its tokens; `release` frees them."""

    key: str
    num_tokens: int
    num_blocks: int
    digest: int
    deadline: float
    release: Callable[[], None]


class Leases:
    """Leases of pinned blocks. `lease_s` is how long blocks wait; the owner of the clock calls `expire`."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._pinned: dict[str, PinnedBlocks] = {}
        self._leaving: dict[str, PinnedBlocks] = {}
        self.num_fetched = 0
        self.num_expired = 0
        self.num_late = 0
        """Fetches of blocks that are not there (any more): fetched before, expired, or of another time."""

    def __repr__(self) -> str:
        return f"Leases({len(self._pinned)} pinned, {len(self._leaving)} being fetched)"

    @property
    def num_pinned_blocks(self) -> int:
        return sum(one.num_blocks for kept in (self._pinned, self._leaving) for one in kept.values())

    @property
    def next_deadline(self) -> float | None:
        """Time of the next `expire`."""
        return min((pinned.deadline for pinned in self._pinned.values()), default=None)

    @property
    def keys(self) -> list[str]:
        return [*self._pinned, *self._leaving]

    def pin(
        self,
        key: str,
        num_tokens: int,
        num_blocks: int,
        digest: int,
        release: Callable[[], None],
        now: float,
    ) -> None:
        """Pin a prompt's blocks. Blocks pinned under the same key are freed: none can name them any more."""
        self.drop(key)
        self._pinned[key] = PinnedBlocks(key, num_tokens, num_blocks, digest, now + self._lease_s, release)

    def renew(self, key: str, now: float) -> None:
        """Extend a lease: decode has the request in its queue, and will come."""
        if key in self._pinned:
            self._pinned[key] = replace(self._pinned[key], deadline=now + self._lease_s)

    def take(self, key: str) -> PinnedBlocks | None:
        """Take blocks for a fetch, which then calls `fetched` or `give_back`; None is counted."""
        pinned = self._pinned.pop(key, None)
        if pinned is None:
            self.num_late += 1
        else:
            self._leaving[key] = pinned
        return pinned

    def fetched(self, key: str) -> None:
        pinned = self._leaving.pop(key, None)
        if pinned is not None:
            self.num_fetched += 1
            pinned.release()

    def give_back(self, key: str) -> None:
        """Return blocks of a fetch that broke off: they wait until the lease ends."""
        pinned = self._leaving.pop(key, None)
        if pinned is not None:
            self._pinned[key] = pinned

    def drop(self, key: str) -> bool:
        """Free blocks that will not be fetched."""
        pinned = self._pinned.pop(key, None)
        if pinned is not None:
            pinned.release()
        return pinned is not None

    def expire(self, now: float) -> list[str]:
        """Free blocks with leases that have ended. Returns their keys."""
        late = [key for key, pinned in self._pinned.items() if pinned.deadline <= now]
        for key in late:
            self.num_expired += 1
            self.drop(key)
        return late
