"""Online least squares with forgetting: the weights of a few features that predict a duration.

    seconds  ≈  w[0] · x[0] + w[1] · x[1] + …,  no weight below 0

Old observations count less, by their number and their age; where little weight is left, the solution returns
to the prior. An outlier counts less the farther off it is: a request that waited for something unseen must
not change the weights. Several outliers in a row are a change, and earlier observations are discounted.
Observations that overlap in time are one event: a stall delays all requests that are there.
"""

import math
from collections.abc import Sequence
from typing import Final

KEPT: Final = 0.97
"""Discount of earlier observations with each new one: some thirty count."""
FORGET_S: Final = 120.0
"""Discount with time. A worker that gets no requests because it was slow looks like the others after some
minutes."""
NOISE: Final = 0.15
FLOOR_S: Final = 0.005
"""Noise of an observation: a share of the expected duration, plus clocks and engine steps."""
FAR: Final = 2.0
"""Observations farther off than this multiple of the noise count less."""
FARTHEST: Final = 20.0
"""Observations slower than this multiple of the noise, some four times the expected duration, hardly count
where the scale is known: a cold start or a stall says nothing about the requests that follow."""
MIN_APART: Final = 3.0
"""Observations apart in time from which the scale of the durations is known."""
IN_A_ROW: Final = 5
KEPT_OVER_CHANGE: Final = 0.5
LEAST: Final = 1e-12
"""The smallest spread: a certain prior could not be learnt from."""
SWEEPS: Final = 3
"""Sweeps of coordinate descent per solution; the previous solution, where they begin, is near."""


class LeastSquares:
    """Online least squares; `prior` holds before any observation, with `spread` as one standard deviation."""

    def __init__(self, prior: Sequence[float], spread: Sequence[float]) -> None:
        self.weights = list(prior)
        self.num_seen = 0.0
        self.num_apart = 0.0
        """Observations that do not overlap in time, of which old ones count less."""
        self._is_prior_learnt = False
        self._spread = list(spread)
        self._prior = list(prior)
        self._seen = [0.0] * len(prior) ** 2
        self._sums = [0.0] * len(prior)
        self._at_s = -1.0
        self._num_above = 0
        self._num_below = 0
        self._apart_s = self._far_s = -math.inf

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
        is_farthest = off > FARTHEST and (self._is_prior_learnt or self.num_apart >= MIN_APART)
        if self._counts_in_a_row(off, is_farthest=is_farthest, began_s=now - seconds, now=now) >= IN_A_ROW:
            num_apart = self.num_apart
            self.forget(now, KEPT_OVER_CHANGE)
            self.num_apart = num_apart
        elif abs(off) > FAR:
            weight *= FAR / abs(off)
            if is_farthest:
                weight *= FARTHEST / off
        seen, sums, num = self._seen, self._sums, len(self.weights)
        for i in range(num):
            xi = weight * x[i]
            sums[i] += xi * seconds
            for j in range(num):
                seen[num * i + j] += xi * x[j]
        self.num_seen += 1.0
        if now - seconds >= self._apart_s:
            self.num_apart += 1.0
            self._apart_s = now
        self._solve(SWEEPS)

    def _counts_in_a_row(self, off: float, *, is_farthest: bool, began_s: float, now: float) -> int:
        """Count an outlier, and return how many there were in a row on one side. The farthest count once for
        all that overlap."""
        self._num_below = self._num_below + 1 if off < -FAR else 0
        if off <= FAR:
            self._num_above = 0
        elif not is_farthest:
            self._num_above += 1
        elif began_s >= self._far_s:
            self._num_above += 1
            self._far_s = now
        return max(self._num_above, self._num_below)

    def forget(self, now: float, kept: float = 1.0) -> None:
        """Discount observations by their age, and by the factor `kept`."""
        if self._at_s >= 0.0:
            kept *= math.exp((self._at_s - now) / FORGET_S)
        self._at_s = now
        self._seen = [kept * one for one in self._seen]
        self._sums = [kept * one for one in self._sums]
        self.num_seen *= kept
        self.num_apart *= kept

    def restart(self) -> None:
        """Forget all observations."""
        self.forget(self._at_s, 0.0)
        self._num_above = self._num_below = 0

    def believe(self, prior: Sequence[float], spread: Sequence[float], *, is_learnt: bool = False) -> None:
        """Replace the prior, which holds where there are no observations; `is_learnt` from others' ones."""
        self._prior, self._spread, self._is_prior_learnt = list(prior), list(spread), is_learnt
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
