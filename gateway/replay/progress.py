"""Progress of long replays on standard error: a line that is redrawn on a terminal, a new one now and then
elsewhere. Runs in other processes count in shared memory."""

import sys
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import TextIO

REDRAW_S, LINE_S = 0.25, 15.0
"""Seconds between two states, on a terminal and elsewhere; the first one comes so late too."""
CLEAR = "\r\x1b[K"


class RunCounts:
    """Ended requests of each run, and all of them, once they are known."""

    def __init__(self, num_runs: int) -> None:
        self.num_runs = num_runs
        self._counts = RawArray("q", 2 * num_runs)

    def __repr__(self) -> str:
        return f"RunCounts({self.text()})"

    def set(self, run: int, num_ended: int, num_jobs: int) -> None:
        self._counts[2 * run], self._counts[2 * run + 1] = num_ended, num_jobs

    def text(self) -> str:
        ended, jobs = self._counts[::2], self._counts[1::2]
        share = sum(num / max(most, 1) for num, most in zip(ended, jobs, strict=True)) / self.num_runs
        num_done = sum(0 < most == num for num, most in zip(ended, jobs, strict=True))
        return f"{share:.0%}, {sum(ended):,} requests, {num_done} of {self.num_runs} runs done"


class Progress:
    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a progress that is written to standard error, or to `out`."""
        self._out = out = sys.stderr if out is None else out
        self._clock = clock
        self._is_terminal = out.isatty()
        self._every_s = REDRAW_S if self._is_terminal else LINE_S
        self._due_s = clock() + self._every_s
        self._is_drawn = False

    def __repr__(self) -> str:
        return f"Progress({'terminal' if self._is_terminal else 'lines'}, every {self._every_s:g} s)"

    def show(self, text: Callable[[], str]) -> None:
        """Write the state if one is due."""
        now = self._clock()
        if now < self._due_s:
            return
        self._due_s = now + self._every_s
        self._is_drawn = True
        line = f"kvgate replay: {text()}"
        self._out.write(f"{CLEAR}{line}" if self._is_terminal else f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        """Remove the line from a terminal, where results come next."""
        if self._is_drawn and self._is_terminal:
            self._out.write(CLEAR)
            self._out.flush()
        self._is_drawn = False
