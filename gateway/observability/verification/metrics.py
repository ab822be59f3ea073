"""Views of the verification of predictions: metrics, `/admin/verify`, and a summary for `/admin/workers`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.worker import WorkerId
from gateway.observability.metric_spec import Merge, MetricSpec, counter, gauge
from gateway.observability.metrics import Metrics
from gateway.observability.verification.engine_counters import EngineCounters
from gateway.observability.verification.misprediction import ErrorCause
from gateway.observability.verification.verifier import Verifier, WorkerVerification
from gateway.parity.live_check import TokenDifference

TextOf = Callable[[str, Sequence[int]], str | None]
"""The text of some tokens of a model; None if kvgate does not have the model's tokenizer."""


MISPREDICTIONS = counter(
    "kvgate_mispredictions_total",
    "Answers with other cached tokens than predicted, by worker and cause.",
    *("worker", "cause"),
)

SALT_ALARMS = counter(
    "kvgate_salt_alarms_total",
    "Answers to salted prompts with cached tokens that no event stored under the prompt's salt: tenants may "
    "share the worker's cache.",
    "worker",
)

_GAUGES: tuple[tuple[MetricSpec, Callable[[WorkerVerification], float]], ...] = (
    (
        gauge(
            "kvgate_prediction_exact_ratio",
            "Share of recent predictions of cached tokens that were exactly right, from 0 to 1.",
            "worker",
            merge=Merge.MIN,
        ),
        lambda w: w.exactness.exact_share,
    ),
    (
        gauge(
            "kvgate_prediction_mean_error_tokens",
            "Mean of reported minus predicted cached tokens over recent answers.",
            "worker",
        ),
        lambda w: w.exactness.mean_error,
    ),
    (
        gauge(
            "kvgate_prediction_mean_absolute_error_tokens",
            "Mean absolute difference between reported and predicted cached tokens over recent answers.",
            "worker",
        ),
        lambda w: w.exactness.mean_abs_error,
    ),
    (
        gauge(
            "kvgate_prediction_confidence_ratio",
            "Factor from 0 to 1 by which routing discounts the worker's predicted overlap.",
            "worker",
            merge=Merge.MIN,
        ),
        lambda w: w.exactness.confidence,
    ),
    (
        gauge(
            "kvgate_prompt_token_mismatch",
            "1 if the worker's tokens for a prompt differ from kvgate's, else 0; see /admin/verify.",
            "worker",
        ),
        lambda w: float(w.tokens.is_raised),
    ),
)

_COUNTED: tuple[tuple[MetricSpec, Callable[[EngineCounters], int | None]], ...] = (
    (
        gauge(
            "kvgate_engine_prompt_tokens",
            "Prompt tokens by the engine's own counter since the worker joined, from all clients of the "
            "engine.",
            "worker",
        ),
        lambda c: c.prompt_tokens,
    ),
    (
        gauge(
            "kvgate_engine_cached_tokens",
            "Cached prompt tokens by the engine's own counter since the worker joined, from all clients of "
            "the engine.",
            "worker",
        ),
        lambda c: c.cached_tokens,
    ),
)

METRICS = (*(spec for spec, _ in _GAUGES), MISPREDICTIONS, SALT_ALARMS, *(spec for spec, _ in _COUNTED))


class VerifyCollector(Collector):
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def collect(self) -> Iterator[Metric]:
        watched = list(self._verifier.watched())
        for spec, read in _GAUGES:
            yield spec.family((worker, read(w)) for worker, w in watched)
        yield MISPREDICTIONS.family(
            ((worker, cause.value), w.causes[cause]) for worker, w in watched for cause in ErrorCause
        )
        yield SALT_ALARMS.family((worker, w.num_salt_alarms) for worker, w in watched)
        counters = list(self._verifier.counters())
        for counted, count in _COUNTED:
            yield counted.family((worker, count(c) or 0) for worker, c in counters)


def summary(verifier: Verifier, worker: WorkerId) -> dict[str, Any]:
    """A worker's figures, as in `/admin/workers`."""
    watched = verifier.find(worker)
    exactness = watched.exactness if watched else None
    is_compared = exactness is not None and exactness.num_compared > 0
    return {
        "compared": exactness.num_compared if exactness else 0,
        "unknown": exactness.num_unknown if exactness else 0,
        "exact_share": round(exactness.exact_share, 4) if exactness and is_compared else None,
        "mean_error_tokens": round(exactness.mean_error, 1) if exactness and is_compared else None,
        "mean_absolute_error_tokens": round(exactness.mean_abs_error, 1)
        if exactness and is_compared
        else None,
        "confidence": round(exactness.confidence, 3) if exactness else 1.0,
        "token_parity": "differ" if watched and watched.tokens.is_raised else "agree",
    }


def describe(verifier: Verifier, metrics: Metrics, text_of: TextOf) -> dict[str, Any]:
    """The answer of `/admin/verify`. It shows only the few tokens of a prompt around the first difference."""
    counters = dict(verifier.counters())
    workers = [
        {
            "worker": worker,
            **summary(verifier, worker),
            "mispredictions": {cause.value: watched.causes[cause] for cause in ErrorCause},
            "latest_mispredictions": [
                {
                    "id": w.decision,
                    "predicted_cached_tokens": w.predicted,
                    "reported_cached_tokens": w.cached,
                    "cause": w.cause.value,
                }
                for w in reversed(watched.wrong)
            ],
            "prompts": _prompts(watched, text_of),
            "engine": _engine(counters.get(worker)),
            "sent": {
                "prompt_tokens": metrics.worker(worker).prompt_tokens,
                "predicted_cached_tokens": metrics.worker(worker).predicted_cached_tokens,
            },
        }
        for worker, watched in verifier.watched()
    ]
    return {"workers": workers}


def _engine(counters: EngineCounters | None) -> dict[str, int | None] | None:
    if counters is None:
        return None
    return {"prompt_tokens": counters.prompt_tokens, "cached_tokens": counters.cached_tokens}


def _prompts(watched: WorkerVerification, text_of: TextOf) -> dict[str, Any]:
    tokens = watched.tokens
    return {
        "counted": tokens.counts.num,
        "counted_differing": tokens.counts.num_differing,
        "sampled": tokens.stored.num,
        "sampled_differing": tokens.stored.num_differing,
        "first_difference": _difference(tokens.difference, text_of) if tokens.difference else None,
    }


def _difference(found: TokenDifference, text_of: TextOf) -> dict[str, Any]:
    return {
        "id": found.decision,
        "model": found.model,
        "gateway_tokens": found.num_ours,
        "engine_tokens": found.num_engines,
        "position": found.position,
        "window_start": found.start if found.position is not None else None,
        "gateway_window": _window(found.model, found.ours, text_of),
        "engine_window": _window(found.model, found.engines, text_of),
    }


def _window(model: str, tokens: Sequence[int], text_of: TextOf) -> dict[str, Any]:
    return {"tokens": tokens, "text": text_of(model, tokens) if tokens else None}
