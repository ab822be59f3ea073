"""The score of one policy: outcomes of its decisions."""

from collections import deque
from typing import Any

from gateway.core.decision import Decision
from gateway.core.outcome import Outcome
from gateway.observability.metrics import TTFT_BOUNDS_S, Histogram

LATEST = 4096
"""Latest TTFTs that quantiles are taken of: some minutes of a busy fleet, 32 KB."""


class PolicyScore:
    """The outcomes of a policy's attempts. The hit rate covers answers that report their cached tokens."""

    def __init__(self) -> None:
        self.num_requests = self.num_errors = 0
        self.reported_prompt_tokens = self.reported_cached_tokens = 0
        self.ttft_s = Histogram(TTFT_BOUNDS_S)
        self.promises = TtftPredictions()
        self._latest_s: deque[float] = deque(maxlen=LATEST)

    def ended(self, decision: Decision, outcome: Outcome) -> None:
        self.num_requests += 1
        self.num_errors += outcome.is_error
        if outcome.reported_cached_tokens is not None and outcome.reported_prompt_tokens is not None:
            self.reported_prompt_tokens += outcome.reported_prompt_tokens
            self.reported_cached_tokens += outcome.reported_cached_tokens
        if outcome.ttft_s is not None:
            self.ttft_s.observe(outcome.ttft_s)
            self._latest_s.append(outcome.ttft_s)
            if decision.ttft_s is not None and decision.attempt == 1:  # later ones know nothing of the first
                self.promises.add(decision.ttft_s, outcome.ttft_s, is_same=True)

    def describe(self) -> dict[str, Any]:
        reported = self.reported_prompt_tokens
        in_order = sorted(self._latest_s)
        return {
            "requests": self.num_requests,
            "failed_requests": self.num_errors,
            "ttft_p50_s": _quantile(in_order, 0.5),
            "ttft_p90_s": _quantile(in_order, 0.9),
            "hit_rate": round(self.reported_cached_tokens / reported, 4) if reported else None,
            "reported_prompt_tokens": reported,
            "reported_cached_tokens": self.reported_cached_tokens,
            **self.promises.describe(),
        }


class TtftPredictions:
    """Predicted and measured times to first token. A prediction's error is known only where the request went
    to the predicted worker."""

    def __init__(self) -> None:
        self.num = 0
        self.predicted_s = self.measured_s = 0.0
        self.same_measured_s = self.same_error_s = 0.0

    def add(self, predicted_s: float, measured_s: float, *, is_same: bool) -> None:
        self.num += 1
        self.predicted_s += predicted_s
        self.measured_s += measured_s
        if is_same:
            self.same_measured_s += measured_s
            self.same_error_s += abs(predicted_s - measured_s)

    def describe(self) -> dict[str, Any]:
        """Return the means, and the error as a share of the measured time."""
        return {
            "predicted_ttft_s": round(self.predicted_s / self.num, 6) if self.num else None,
            "measured_ttft_s": round(self.measured_s / self.num, 6) if self.num else None,
            "prediction_error": (
                round(self.same_error_s / self.same_measured_s, 4) if self.same_measured_s else None
            ),
        }


def _quantile(in_order: list[float], share: float) -> float | None:
    return round(in_order[min(int(len(in_order) * share), len(in_order) - 1)], 6) if in_order else None
