"""Which worker was sent which images: what is assumed of prompts whose tokens are not known
(core/multimodal.py).

The same mechanism as for blocks (`assumed.py`), apart from these: a worker with events tells of its blocks,
and what it does not tell is forgotten in a second; of images its events tell nothing that can be looked up.
"""

from collections.abc import Iterable
from itertools import accumulate

from gateway.core.multimodal import Links
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex

MAX_LINKS = 8192
"""Of one worker, some 200 bytes each: a thousand conversations."""


class SentLinks:
    """`index` pins what is in flight, and keeps what was run for `keep_s`; a worker whose blocks `assumed`
    forgets holds no images either."""

    def __init__(self, assumed: AssumedIndex, keep_s: float) -> None:
        self.index = AssumedIndex()
        self._keep_s = keep_s
        self._workers: set[WorkerId] = set()
        assumed.resets.append(self._forget)

    def __repr__(self) -> str:
        return f"SentLinks({self.index})"

    def find(self, links: Links, workers: Iterable[WorkerId], now: float) -> dict[WorkerId, int]:
        """About how many leading tokens of `links` each worker was sent before."""
        for worker in workers:
            if worker not in self._workers:
                self._workers.add(worker)
                self.index.add_worker(worker, keep_s=self._keep_s, max_blocks=MAX_LINKS)
        held: dict[WorkerId, int] = {}
        self.index.extend(links.hashes, held, now)
        before = [0, *accumulate(links.num_tokens)]
        return {worker: before[num] for worker, num in held.items()}

    def _forget(self, worker: WorkerId) -> None:
        """What is in flight there is told again by the next request for it."""
        self._workers.discard(worker)
        self.index.drop_worker(worker)
