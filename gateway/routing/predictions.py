"""Predicted TTFT against the one that came: how far predictions are off lately, and whether to rely on them.

Predictions are relied on until half of the latest ones are off by more than a factor of FAR, and again once
fewer than a quarter are: a worker that stalls, another gateway's load or a new kind of request make some
wrong, a wrong model of the fleet makes all of them wrong.
"""

import logging
from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.observability.metrics import Histogram

log = logging.getLogger(__name__)

FAR: Final = 3.0
LEAST_S: Final = 0.1
"""TTFTs below this count as this much: people notice no difference."""
NUM: Final = 256
FEWEST: Final = 64
MOST_FAR, FEW_FAR = 0.5, 0.25
ERROR_BOUNDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


@mypyc_attr(acyclic=True)
class Predictions:
    """The latest predictions of all models. `holds` is False while they are not relied on; `errors` are
    |predicted - actual| ÷ actual."""

    __slots__ = ("holds", "errors", "_far", "_num_far")

    def __init__(self) -> None:
        self.holds = True
        self.errors = Histogram(ERROR_BOUNDS)
        self._far: deque[bool] = deque(maxlen=NUM)
        self._num_far = 0

    def __repr__(self) -> str:
        return f"Predictions({self._num_far} of {len(self._far)} far off)"

    def came(self, predicted_s: float, actual_s: float) -> None:
        """Compare a prediction with the TTFT that came."""
        least_s, far = max(actual_s, LEAST_S), self._far
        self.errors.observe(abs(predicted_s - actual_s) / least_s)
        if len(far) == NUM:
            self._num_far -= far[0]
        far.append(not 1 / FAR <= max(predicted_s, LEAST_S) / least_s <= FAR)
        self._num_far += far[-1]
        num = len(far)
        if num < FEWEST:
            return
        share = self._num_far / num
        if self.holds and share > MOST_FAR:
            self.holds = False
            log.warning(
                "predicted TTFTs: %d of the latest %d are off by more than a factor of %g; requests are "
                "routed by prefix overlap until fewer than a quarter are",
                self._num_far, num, FAR,
            )  # fmt: skip
        elif not self.holds and share < FEW_FAR:
            self.holds = True
            log.info("predicted TTFTs: accurate again; requests are routed by them")
