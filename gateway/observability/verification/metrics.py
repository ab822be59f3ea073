"""What operators see of it: metrics, `/admin/verify`, and a word in `/admin/workers`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.core.worker import WorkerId
from gateway.observability.metrics import Metrics
from gateway.observability.verification.causes import Cause
from gateway.observability.verification.engine_counters import EngineCounters
from gateway.observability.verification.token_check import Difference
from gateway.observability.verification.verifier import Verifier, Watched

TextOf = Callable[[str, Sequence[int]], str | None]
"""The text of some tokens of a model; None where its tokenizer is not here."""


class VerifyCollector:
    """Read at each scrape."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        watched = list(self._verifier.watched())
        for name, text, read in _GAUGES:
            yield _gauge(name, text, [(worker, read(w)) for worker, w in watched])
        causes = CounterMetricFamily(
            "kvgate_mispredictions", "Answers whose prediction was wrong", labels=["worker", "cause"]
        )
        for worker, w in watched:
            for cause in Cause:
                causes.add_metric([worker, cause.value], w.causes[cause])
        yield causes
        counters = list(self._verifier.counters())
        for name, text, count in _COUNTED:
            yield _gauge(name, text, [(worker, count(c) or 0) for worker, c in counters])


_GAUGES: tuple[tuple[str, str, Callable[[Watched], float]], ...] = (
    (
        "prediction_exact_ratio",
        "Share of predictions that were exactly right, lately",
        lambda w: w.exactness.share_right,
    ),
    (
        "prediction_error_tokens_mean",
        "Reported less predicted cached tokens, lately",
        lambda w: w.exactness.mean_error,
    ),
    (
        "prediction_abs_error_tokens_mean",
        "The same without its sign",
        lambda w: w.exactness.mean_abs_error,
    ),
    (
        "prediction_confidence_ratio",
        "Share of an overlap that is counted for the worker",
        lambda w: w.exactness.confidence,
    ),
    (
        "prompt_mismatch",
        "1 if the worker's prompt tokens differ from ours; see /admin/verify",
        lambda w: float(w.tokens.is_raised),
    ),
)

_COUNTED: tuple[tuple[str, str, Callable[[EngineCounters], int | None]], ...] = (
    (
        "engine_prompt_tokens",
        "Prompt tokens by the engine's own counter since it joined: all traffic, not only ours",
        lambda c: c.prompt_tokens,
    ),
    (
        "engine_cached_tokens",
        "Of those, cached ones by the engine's own counter",
        lambda c: c.cached_tokens,
    ),
)


def _gauge(name: str, text: str, rows: Iterable[tuple[WorkerId, float]]) -> Metric:
    family = GaugeMetricFamily(f"kvgate_{name}", text, labels=["worker"])
    for worker, value in rows:
        family.add_metric([worker], value)
    return family


def summary(verifier: Verifier, worker: WorkerId) -> dict[str, Any]:
    """A worker's figures, as in `/admin/workers`."""
    watched = verifier.find(worker)
    exactness = watched.exactness if watched else None
    return {
        "compared": exactness.num_compared if exactness else 0,
        "share_right": round(exactness.share_right, 4) if exactness else None,
        "mean_error_tokens": round(exactness.mean_error, 1) if exactness else None,
        "mean_abs_error_tokens": round(exactness.mean_abs_error, 1) if exactness else None,
        "confidence": round(exactness.confidence, 3) if exactness else 1.0,
        "prompt_tokens": "differ" if watched and watched.tokens.is_raised else "agree",
    }


def describe(verifier: Verifier, metrics: Metrics, text_of: TextOf) -> dict[str, Any]:
    """As `/admin/verify` shows it. Of prompts no more than a few tokens around the first that differs."""
    counters = dict(verifier.counters())
    workers = [
        {
            "worker": worker,
            **summary(verifier, worker),
            "mispredictions": {cause.value: watched.causes[cause] for cause in Cause},
            "latest_wrong": [
                {"id": w.decision, "predicted": w.predicted, "cached": w.cached, "cause": w.cause.value}
                for w in reversed(watched.wrong)
            ],
            "prompts": _prompts(watched, text_of),
            "engine": _engine(counters.get(worker)),
            "sent": {
                "sent_prompt_tokens": metrics.worker(worker).prompt_tokens,
                "sent_predicted_tokens": metrics.worker(worker).predicted_cached_tokens,
            },
        }
        for worker, watched in verifier.watched()
    ]
    return {"workers": workers}


def _engine(counters: EngineCounters | None) -> dict[str, int | None] | None:
    if counters is None:
        return None
    return {"prompt_tokens": counters.prompt_tokens, "cached_tokens": counters.cached_tokens}


def _prompts(watched: Watched, text_of: TextOf) -> dict[str, Any]:
    tokens = watched.tokens
    return {
        "counted": tokens.counts.num,
        "counted_differing": tokens.counts.num_differing,
        "sampled": tokens.stored.num,
        "sampled_differing": tokens.stored.num_differing,
        "first_difference": _difference(tokens.difference, text_of) if tokens.difference else None,
    }


def _difference(found: Difference, text_of: TextOf) -> dict[str, Any]:
    return {
        "id": found.decision,
        "model": found.model,
        "num_ours": found.num_ours,
        "num_engine": found.num_engines,
        "position": found.position,
        "window_from": found.start if found.position is not None else None,
        "ours": _window(found.model, found.ours, text_of),
        "engine": _window(found.model, found.engines, text_of),
    }


def _window(model: str, tokens: Sequence[int], text_of: TextOf) -> dict[str, Any]:
    return {"tokens": tokens, "text": text_of(model, tokens) if tokens else None}
