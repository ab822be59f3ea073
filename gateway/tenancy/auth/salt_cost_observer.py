"""Observer of decisions that estimates the cost of tenants' salts in the background
(`tenancy/auth/salt_cost.py`)."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from gateway.core.blocks import Tokens
from gateway.core.decision import Decided
from gateway.core.fleet import Fleet
from gateway.tenancy.auth.salt_cost import SaltCost

MAX_QUEUED = 1_000
MAX_QUEUED_TOKENS = 1 << 20
PAUSE_S = 0.05
PORTION_S = 0.001
"""A fiftieth of a core at most; requests beyond that are skipped and counted."""

_Seen = tuple[str, Sequence[Tokens], str, int]


class SaltCostObserver:
    """Decision observer: on the data path a request is only queued, less than 1 us."""

    def __init__(self, fleet: Fleet) -> None:
        self.salt_cost = SaltCost()
        self.num_left_out = 0
        self._fleet = fleet
        self._queue: deque[_Seen] = deque()
        self._num_queued_tokens = 0

    def __repr__(self) -> str:
        return f"SaltCostObserver({self.salt_cost!r}, {len(self._queue)} queued)"

    def decided(self, decided: Decided) -> None:
        decision, prompt, request = decided.decision, decided.prompt, decided.request
        if request.cache_salt is None or not prompt.tokens or decision.attempt > 1:
            return
        if len(self._queue) >= MAX_QUEUED or self._num_queued_tokens > MAX_QUEUED_TOKENS:
            self.num_left_out += 1
            return
        self._num_queued_tokens += decision.num_tokens
        self._queue.append((decision.model, prompt.tokens, request.cache_salt, decision.overlap_tokens))

    def step(self) -> bool:
        """Examine one queued request; False if there is none."""
        if not self._queue:
            return False
        seen = self._queue.popleft()
        self._num_queued_tokens -= sum(map(len, seen[1]))
        self.salt_cost.see(*seen)
        return True

    def measure_fleet(self) -> None:
        blocks = [member.worker.num_blocks or 0 for member in self._fleet]
        sizes = [member.worker.block_size or 0 for member in self._fleet]
        self.salt_cost.set_capacity(sum(num * size for num, size in zip(blocks, sizes, strict=True)))


async def count_salt_cost(salt_observer: SaltCostObserver) -> None:
    """Work off the queue in short portions with pauses, so that requests come first."""
    while True:
        await asyncio.sleep(PAUSE_S)
        salt_observer.measure_fleet()
        end = time.perf_counter() + PORTION_S
        while salt_observer.step() and time.perf_counter() < end:
            pass
