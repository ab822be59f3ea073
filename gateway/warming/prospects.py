"""Prospects: the hot prefixes as one worker would use them."""

from collections.abc import Callable, Sequence

from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.warming.choice import Prospect, predicted_reuse
from gateway.warming.hot_prefixes import Branch


def prospects_of(
    worker: WorkerId,
    branches: Sequence[Branch],
    index: Index,
    assumed: AssumedIndex,
    busy: Callable[[WorkerId], float | None],
    now: float,
) -> list[Prospect]:
    """Return a prospect for each branch, in their order: parents before their children. `busy` is the share
    of a worker's busy time, None for workers that take no requests: they count as no holders."""
    at = {branch: number for number, branch in enumerate(branches)}
    found: dict[Branch, Prospect] = {}
    for branch in reversed(branches):
        if branch in found:
            continue
        hashes = branch.prefix_hashes()
        depths = dict(index.overlap(hashes))
        assumed.extend(hashes, depths, now)
        held, end = depths.pop(worker, 0), 0
        for one in branch.path():
            begin, end = end, end + len(one.hashes)
            if one in found:  # as another branch behind it has shown
                continue
            holders = [busy(other) for other, depth in depths.items() if depth >= end]
            num_lacking = len(one.hashes) - min(max(held - begin, 0), len(one.hashes))
            reuse = predicted_reuse(one.per_minute(now), [each for each in holders if each is not None])
            parent = -1 if one.parent is None else at[one.parent]
            found[one] = Prospect(parent, num_lacking * one.space.block_size, reuse)
    return [found[branch] for branch in branches]
