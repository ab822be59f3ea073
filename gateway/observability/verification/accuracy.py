"""Accuracy of recent predictions about one worker, in tokens; recent answers weigh most."""

from typing import Final

from gateway.core.prediction import Compared

WINDOW: Final = 32
"""Answers that the running means cover, approximately."""
MIN_CREDITED: Final = 16
"""Fewer answers prove nothing: a burst of evictions ends before that many more arrive."""
GOOD: Final = 0.95
"""Share of the predicted tokens that is enough for full confidence: some blocks are evicted while requests
wait."""
LEAST: Final = 0.1
"""Lowest confidence: above 0, so that the worker still wins among otherwise equal ones and is tried again."""


class Accuracy:
    """Running accuracy. `mean_error` is reported minus predicted tokens; below 0, predictions are high.
    `num_unknown` answers had more cached than could be known: they are neither right nor wrong, and not among
    the compared."""

    __slots__ = (
        "num_compared",
        "num_unknown",
        "num_since_wrong",
        "exact_share",
        "mean_error",
        "mean_abs_error",
        "_num_credited",
        "_predicted",
        "_kept",
    )

    def __init__(self) -> None:
        self.num_compared = self.num_unknown = self._num_credited = 0
        self.num_since_wrong = WINDOW
        self.exact_share = 1.0
        self.mean_error = self.mean_abs_error = 0.0
        self._predicted = self._kept = 0.0

    def __repr__(self) -> str:
        return f"Accuracy({self.exact_share:.2f} of {self.num_compared} right, worth {self.confidence:.2f})"

    def compare(self, predicted: int, reported: int, compared: Compared) -> None:
        """Add an answer: its predicted and reported cached tokens, and what `compared` makes of them."""
        error = compared.error
        self.num_since_wrong = 0 if error else self.num_since_wrong + 1
        if compared.unknown:
            self.num_unknown += 1
        else:
            self.num_compared += 1
            weight = 1 / min(self.num_compared, WINDOW)
            self.exact_share += ((not error) - self.exact_share) * weight
            self.mean_error += (error - self.mean_error) * weight
            self.mean_abs_error += (abs(error) - self.mean_abs_error) * weight
        if predicted:
            self._num_credited += 1
            weight = 1 / min(self._num_credited, WINDOW)
            self._predicted += (predicted - self._predicted) * weight
            self._kept += (min(reported, predicted) - self._kept) * weight

    def rest(self) -> None:
        """Restore some confidence after an interval without answers, so that the worker is tried again."""
        self._kept += (self._predicted - self._kept) / WINDOW

    @property
    def num_answers(self) -> int:
        """Answers that reported cached tokens."""
        return self.num_compared + self.num_unknown

    @property
    def was_wrong_lately(self) -> bool:
        return self.num_since_wrong < WINDOW

    @property
    def confidence(self) -> float:
        """The share of a predicted overlap that the worker's answers have earned, from LEAST to 1."""
        if self._num_credited < MIN_CREDITED:
            return 1.0
        earned = self._kept / self._predicted
        return 1.0 if earned >= GOOD else max(earned, LEAST)
