"""Online least squares with forgetting: the weights of a few features that predict a duration.

    seconds  ≈  w[0] · x[0] + w[1] · x[1] + …,  no weight below 0

Old observations count less, by their number and their age; where little weight is left, the solution returns
to the prior. An outlier counts less the farther off it is: a request that waited for something unseen must
not change the weights. Several outliers in a row are a change, and earlier observations are discounted.
"""

import math
from collections.abc import Sequence

KEPT = 0.97
"""Discount of earlier observations with each new one: some thirty count."""
FORGET_S = 120.0
"""Discount with time. A worker that gets no requests because it was slow looks like the others after some
minutes."""
NOISE, FLOOR_S = 0.15, 0.005
"""Noise of an observation: a share of the expected duration, plus clocks and engine steps."""
FAR = 2.0
"""Observations farther off than this multiple of the noise count less."""
IN_A_ROW, KEPT_OVER_CHANGE = 5, 0.5
LEAST = 1e-12
"""The smallest spread: a certain prior could not be learnt from."""
SWEEPS = 3
"""Sweeps of coordinate descent per solution; the previous solution, where they begin, is near."""


class LeastSquares:
    """Online least squares; `prior` holds before any observation, with `spread` as one standard deviation."""

    def __init__(self, prior: Sequence[float], spread: Sequence[float]) -> None:
        self.weights = list(prior)
        self.num_seen = 0.0
        self._spread = list(spread)
        self._prior = list(prior)
        self._seen = [0.0] * len(prior) ** 2
        self._sums = [0.0] * len(prior)
        self._at_s = -1.0
        self._num_above = 0
        self._num_below = 0

    def __repr__(self) -> str:
        return (
            f"LeastSquares({[float(f'{weight:.3g}') for weight in self.weights]}, seen={self.num_seen:.1f})"
        )

    def expect(self, x: Sequence[float]) -> float:
        seconds = 0.0
        for i, weight in enumerate(self.weights):
            seconds += weight * x[i]
        return seconds

    def observe(self, x: Sequence[float], seconds: float, now: float) -> None:
        self.forget(now, KEPT)
        expected = self.expect(x)
        noise = NOISE * expected + FLOOR_S
        off = (seconds - expected) / noise
        weight = 1.0 / (noise * noise)
        self._num_above = self._num_above + 1 if off > FAR else 0
        self._num_below = self._num_below + 1 if off < -FAR else 0
        if max(self._num_above, self._num_below) >= IN_A_ROW:
            self.forget(now, KEPT_OVER_CHANGE)
        elif abs(off) > FAR:
            weight *= FAR / abs(off)
        seen, sums, num = self._seen, self._sums, len(self.weights)
        for i in range(num):
            xi = weight * x[i]
            sums[i] += xi * seconds
            for j in range(num):
                seen[num * i + j] += xi * x[j]
        self.num_seen += 1.0
        self._solve(SWEEPS)

    def forget(self, now: float, kept: float = 1.0) -> None:
        """Discount observations by their age, and by the factor `kept`."""
        if self._at_s >= 0.0:
            kept *= math.exp((self._at_s - now) / FORGET_S)
        self._at_s = now
        self._seen = [kept * one for one in self._seen]
        self._sums = [kept * one for one in self._sums]
        self.num_seen *= kept

    def believe(self, prior: Sequence[float], spread: Sequence[float]) -> None:
        """Replace the prior, which holds where there are no observations."""
        self._prior, self._spread = list(prior), list(spread)
        self._solve(SWEEPS)

    def _solve(self, sweeps: int) -> None:
        weights, seen, num = self.weights, self._seen, len(self.weights)
        for _ in range(sweeps):
            for i in range(num):
                spread = max(self._spread[i], LEAST)
                doubt = 1.0 / (spread * spread)
                wanted = self._sums[i] + doubt * self._prior[i]
                for j in range(num):
                    if j != i:
                        wanted -= seen[num * i + j] * weights[j]
                weights[i] = max(wanted / (seen[num * i + i] + doubt), 0.0)
