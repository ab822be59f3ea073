"""The demo's lines: a table that is redrawn on a terminal, and a plain line now and then elsewhere."""

import sys
from typing import TextIO

from gateway.demo.score import Score, lines, one_line

REDRAW_S = 0.5
PLAIN_S = 6.0


class ScoreView:
    """Shows the scores of both sides."""

    def __init__(self, ours: Score, other: Score, out: TextIO = sys.stdout) -> None:
        self._ours = ours
        self._other = other
        self._out = out
        self._num_drawn = 0
        self.is_terminal = out.isatty()

    @property
    def interval_s(self) -> float:
        """Time between two calls of `show`."""
        return REDRAW_S if self.is_terminal else PLAIN_S

    def show(self) -> None:
        if not self.is_terminal:
            print(one_line(self._ours, self._other), file=self._out, flush=True)
            return
        table = lines((self._ours, self._other))
        up = f"\x1b[{self._num_drawn}A" if self._num_drawn else ""
        print(up + "\n".join(f"\x1b[2K{line}" for line in table), file=self._out, flush=True)
        self._num_drawn = len(table)
