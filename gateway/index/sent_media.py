"""Images that each worker was sent, assumed to be cached, for prompts with unknown tokens
(core/multimodal.py).

Works like assumed blocks (`assumed.py`) but apart from them: blocks of a worker with events are confirmed by
events and otherwise forgotten in a second, while no event reports images in a form to look up.
"""

from collections.abc import Iterable
from itertools import accumulate

from gateway.core.multimodal import Links
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex

MAX_LINKS = 8192
"""Links kept per worker, some 200 bytes each: a thousand conversations."""


class SentLinks:
    """Image links sent to workers. `index` pins those in flight and keeps those that were run for `keep_s`; a
    worker that `assumed` forgets loses its images too."""

    def __init__(self, assumed: AssumedIndex, keep_s: float) -> None:
        self.index = AssumedIndex()
        self._keep_s = keep_s
        self._workers: set[WorkerId] = set()
        assumed.resets.append(self._forget)

    def __repr__(self) -> str:
        return f"SentLinks({self.index})"

    def find(self, links: Links, workers: Iterable[WorkerId], now: float) -> dict[WorkerId, int]:
        """Return about how many leading tokens of `links` each worker was sent before."""
        for worker in workers:
            if worker not in self._workers:
                self._workers.add(worker)
                self.index.add_worker(worker, keep_s=self._keep_s, max_blocks=MAX_LINKS)
        held: dict[WorkerId, int] = {}
        self.index.extend(links.hashes, held, now)
        before = [0, *accumulate(links.num_tokens)]
        return {worker: before[num] for worker, num in held.items()}

    def _forget(self, worker: WorkerId) -> None:
        """Drop a worker's links; the next request for it adds it again."""
        self._workers.discard(worker)
        self.index.drop_worker(worker)
