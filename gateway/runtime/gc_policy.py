"""Garbage-collection policy: no pause may grow with the gateway's state.

Reference counts free nearly everything here: neither a request nor a connection leaves a cycle behind
(tests/runtime/test_gc_policy.py). The collector is left with rare cycles, in exceptions and libraries, which
die young. So

- objects that exist when the gateway has started (modules, tokenizers, templates) are never scanned again;
- objects that survived two collections belong to something that lives long (an index, a ring of decisions,
  a connection), and are not scanned again either: a full collection over them would stop all requests,
  74 ms for the 300,000 objects of a large index, to find nothing;
- young objects are scanned every INTERVAL_S. Python's own measure, objects made less objects freed, would
  let their number grow without end where each request takes the place of an older one.

A cycle that dies after it was frozen stays until the process ends: a leak bounded by how few there are.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

INTERVAL_S = 0.1
"""Collection interval: the objects of a busy gateway in it are scanned in a millisecond or two."""
PORTIONS = 4
"""Collections of the youngest generation before their survivors are scanned once more, all together."""
YOUNG = 5_000
"""Objects made and not freed at which Python collects before the next interval."""


class GcPolicy:
    """Garbage collector of this process. `observe` gets the duration of each collection, in seconds."""

    def __init__(
        self, observe: Callable[[float], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._started = 0.0
        self._num_collected = 0
        self._timer: asyncio.TimerHandle | None = None
        self._before = gc.get_threshold()

    def settle(self) -> None:
        """Freeze all current objects and start the policy, in the running loop."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, PORTIONS, PORTIONS)
        gc.callbacks.append(self._on_collection)
        self._arm()

    def release(self) -> None:
        """Restore the earlier settings, for a process that goes on to something else."""
        if self._timer:
            self._timer.cancel()
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._collect)

    def _collect(self) -> None:
        self._num_collected += 1
        gc.collect(0 if self._num_collected % PORTIONS else 1)
        self._arm()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._clock()
            return
        if info["generation"] > 0:
            gc.freeze()  # the younger generations are empty now: these are the survivors
        self._observe(self._clock() - self._started)
