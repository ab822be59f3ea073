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
SCATTER_STEP: Final = 0.1
"""Weight of one observation in the moving average of the scatter."""
MOST_BETWEEN: Final = 10.0
"""The scatter counts two observations as no farther apart than this multiple of the noise."""
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
        self.sure_share = 0.0
        """Share of its difference from the workers' typical weights that counts."""
        self._is_prior_learnt = False
        self._spread = list(spread)
        self._prior = list(prior)
        self._seen = [0.0] * len(prior) ** 2
        self._sums = [0.0] * len(prior)
        self._at_s = -1.0
        self._scatter = 1.0
        self._last: tuple[Sequence[float], float] | None = None
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
            self._scatters(x, seconds)
        self._solve(SWEEPS)

    def evidence_against(self, weights: Sequence[float]) -> float:
        """Squared distance from other weights, as a multiple of what the scatter of observations explains:
        about the number of weights where the others are the true ones, more the surer the difference is.
        Observations at the same time count as one."""
        apart = self._form([own - other for own, other in zip(self.weights, weights, strict=True)])
        # as a ratio: twice as slow is as far as twice as fast, though the noise is that of this fit's scale
        apart *= math.sqrt(self._form(self.weights) / max(self._form(weights), LEAST))
        return apart * self.num_apart / (max(self.num_seen, self.num_apart, LEAST) * max(self._scatter, 1.0))

    def _far(self, x: Sequence[float], seconds: float) -> float:
        """Distance of an observation from the fit as a ratio, in units of the noise."""
        expected = max(self.expect(x), FLOOR_S)
        return math.log(max(seconds, FLOOR_S) / expected) / (NOISE + FLOOR_S / expected)

    def _scatters(self, x: Sequence[float], seconds: float) -> None:
        """Update the scatter by two successive observations: that the fit is wrong about both is none."""
        if self._last is not None:
            between = min(abs(self._far(x, seconds) - self._far(*self._last)), MOST_BETWEEN)
            self._scatter += (between * between / 2.0 - self._scatter) * SCATTER_STEP
        self._last = x, seconds

    def _form(self, weights: Sequence[float]) -> float:
        """Sum of the squared durations that these weights predict, in units of the noise."""
        seen, num = self._seen, len(weights)
        total = 0.0
        for i in range(num):
            for j in range(num):
                total += weights[i] * seen[num * i + j] * weights[j]
        return total

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
