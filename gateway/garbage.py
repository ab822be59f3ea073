"""When the garbage collector runs, and over what: no pause may grow with what the gateway knows.

Reference counts free nearly everything here: neither a request nor a connection leaves a cycle behind
(tests/test_garbage.py). What is left to the collector are rare cycles, in exceptions and libraries, and
they die young. So

- what is there when the gateway has started (modules, tokenizers, templates) is never looked at again;
- what has survived two collections is held by something that lives long (an index, a ring of decisions,
  a connection), and is not looked at again either: a full collection over it would stop all requests,
  74 ms for the 300,000 objects of a large index, to find nothing;
- the young are collected in portions of YOUNG, each a fraction of a millisecond.

A cycle that dies after it was set aside stays until the process ends: a leak bounded by how few there are.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

from gateway.metrics import Pauses

YOUNG = 5_000
"""Objects made and not freed between two collections of the youngest: a fraction of a millisecond."""
PORTIONS = 4
"""Collections of the youngest before their survivors are looked at once more, all together."""


class Garbage:
    """The collector of this process. `pauses` hears of each collection, in seconds."""

    def __init__(self, pauses: Pauses, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pauses = pauses
        self._clock = clock
        self._started = 0.0
        self._before = gc.get_threshold()

    def settle(self) -> None:
        """All that is there now stays: begin with the policy."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, PORTIONS, PORTIONS)
        gc.callbacks.append(self._on_collection)

    def release(self) -> None:
        """As it was before; for a process that goes on to something else."""
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._clock()
            return
        if info["generation"] > 0:
            gc.freeze()  # the younger generations are empty now: these are the survivors
        self._pauses.observe(self._clock() - self._started)
