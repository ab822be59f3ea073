"""Fits of one line of the speed model: one per worker, and one of all workers together.

A worker of which too little is known is assumed to be like the others: the median of those that are known or,
until there are any, the fit of all workers together, so that the first one that is observed looks no faster
or slower than the others for that. Once the first is known, what little was seen of the others is forgotten:
it was weighed against a guess, and may have been a cold start.

Durations scatter, and of two equal workers one always looks slower. A worker's difference from the typical
one counts once it is larger than the scatter explains, judged at each refresh.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.routing.least_squares import MIN_APART, LeastSquares

UNKNOWN: Final = 2.0
LIKE_OTHERS: Final = 0.5
"""Relative spread of a worker's weights around the configured prior, and around the typical ones."""
SURE: Final = 8.0
"""Evidence from which a worker's difference from the typical one counts: twice what scatter gives by chance
for four weights, since the typical ones are as uncertain."""

Spread = Callable[[Sequence[float], float], Sequence[float]]
"""Spread of weights, by the weights and the relative spread."""


@mypyc_attr(acyclic=True)
class FleetFit:
    """The typical weights of one line, and how sure they are."""

    __slots__ = ("typical", "_spread", "_doubt", "_all")

    def __init__(self, prior: Sequence[float], spread: Spread) -> None:
        self.typical: Sequence[float] = prior
        self._spread = spread
        self._doubt = UNKNOWN
        self._all = LeastSquares(prior, spread(prior, UNKNOWN))

    def __repr__(self) -> str:
        return f"FleetFit({self.typical}, doubt={self._doubt})"

    @property
    def is_known(self) -> bool:
        """True once some worker's weights are known."""
        return self._doubt < UNKNOWN

    def new(self) -> LeastSquares:
        """Return the fit of a worker that joins."""
        spread = self._spread(self.typical, self._doubt)
        fit = LeastSquares(self.typical, spread)
        fit.believe(self.typical, spread, is_learnt=self.is_known)
        return fit

    def observe(self, fit: LeastSquares, x: Sequence[float], seconds: float, now: float) -> None:
        """Learn from an observation of one worker."""
        fit.observe(x, seconds, now)
        if not self.is_known:
            self._all.observe(x, seconds, now)
            self.typical = list(self._all.weights)

    def weights(self, fit: LeastSquares) -> Sequence[float]:
        """Return a worker's weights: the typical ones, and its difference from them as far as it is sure."""
        share = fit.sure_share
        if share == 0.0:
            return self.typical
        typical, own = self.typical, fit.weights
        return [typical[i] + share * (own[i] - typical[i]) for i in range(len(own))]

    def refresh(self, fits: Sequence[LeastSquares], now: float) -> None:
        """Discount old observations, and update the typical weights that all fits believe in."""
        for fit in fits:
            fit.forget(now)
        if known := [fit.weights for fit in fits if is_seen(fit)]:
            if not self.is_known:
                for fit in fits:
                    if not is_seen(fit):
                        fit.restart()
            self.typical, self._doubt = _middle(known), LIKE_OTHERS
        spread = self._spread(self.typical, self._doubt)
        for fit in fits:
            fit.believe(self.typical, spread, is_learnt=self.is_known)
            fit.sure_share = _sure_share(fit, self.typical)


def _sure_share(fit: LeastSquares, typical: Sequence[float]) -> float:
    evidence = fit.evidence_against(typical) if is_seen(fit) else 0.0
    return 1.0 - (SURE / evidence) ** 2 if evidence > SURE else 0.0


def is_seen(fit: LeastSquares) -> bool:
    """True if enough was seen of a worker to go by."""
    return fit.num_apart >= MIN_APART


def _middle(weights: Iterable[Sequence[float]]) -> list[float]:
    """Return the median of each weight, so that a broken worker does not count for the others. Of two
    workers, the slower one must not be typical itself."""
    columns = zip(*weights, strict=True)
    return [sorted(column)[(len(column) - 1) // 2] for column in columns]
