"""The share of its fair load that a worker gets while it is new: a little at first, then more and more.

    share
      1 ┤            ╭────  all that it would get
        │        ╭───╯
    0.1 ┤────────╯          of what each worker of its model gets on average
        └──────────────── seconds since it joined

Policies do not see it: a worker that has had its share is not among the candidates. Each
decision that it could have had earns it `share / number of workers`, and each that it gets costs 1.

A worker that is sent hot prefixes (`warming/`) is held back for that, and then as new as the part of them
that it lacks.
"""

from typing import Final

from mypy_extensions import mypyc_attr

FIRST_SHARE: Final = 0.1


@mypyc_attr(acyclic=True)
class SlowStart:
    """Seconds on the caller's clock. It begins with enough for one request: to see whether it answers."""

    __slots__ = ("began_s", "lasts_s", "credit", "warmed", "held_until_s")

    def __init__(self, began_s: float, lasts_s: float) -> None:
        self.began_s = began_s
        self.lasts_s = lasts_s
        self.credit = 1.0
        self.warmed = 0.0
        self.held_until_s = began_s

    def __repr__(self) -> str:
        return f"SlowStart(of {self.lasts_s:g} s, credit {self.credit:.2f})"

    @property
    def is_due(self) -> bool:
        """True if the worker may get the next request."""
        return self.credit >= 1.0

    def share(self, now: float) -> float:
        """1 when it is over, 0 while it is held back."""
        if now < self.held_until_s:
            return 0.0
        passed = (now - self.began_s) / self.lasts_s if self.lasts_s > 0 else 1.0
        return min(1.0, FIRST_SHARE + (1.0 - FIRST_SHARE) * max(0.0, passed, self.warmed))

    def hold(self, until_s: float) -> None:
        """Hold the worker back until then, also from its first request."""
        self.credit, self.held_until_s = 0.0, until_s

    def decided(self, now: float, num_workers: int, *, is_here: bool) -> None:
        """A decision that it could have had, among so many workers. What it does not use, it does not save
        up: it would come all at once."""
        if is_here:
            self.credit -= 1.0
        self.credit = min(self.credit, 1.0) + self.share(now) / max(num_workers, 1)
