"""Figures of a run: a row of the table, the numbers of the JSON, the curves of the picture."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.replay.job import ReplayJob


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective: the first token within `ttft_s`, each further one within `tpot_s` on
    average."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run. `hit_rate`: cached prompt tokens ÷ prompt tokens. `goodput`: requests per second that
    meet the SLO. `busiest`: prompt tokens that the busiest worker computed ÷ the mean of all, 1 is even.
    `ttft_error_p90`: of |predicted - actual TTFT| ÷ max(actual, LEAST_TTFT_S), of predictions. `num_unused`:
    workers that no request went to."""

    policy: str
    num_requests: int
    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    goodput: float
    good: float
    busiest: float
    ttft_error_p90: float | None = None
    num_unused: int = 0


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of a run. `ttft_s` in order; `hits` and `hit_s`: hit rates over time, by arrival."""

    ttft_s: "array[float]"
    hit_s: "array[float]"
    hits: "array[float]"


LEAST_TTFT_S = 0.1
"""Denominator of the error of shorter TTFTs."""
POINTS = 60
"""Points of a curve over time."""


def summarize(policy: str, jobs: Sequence[ReplayJob], num_workers: int, slo: Slo) -> Summary:
    ttft_s = sorted(job.ttft_s for job in jobs)
    tpot_s = sorted(job.tpot_s for job in jobs)
    e2e_s = sorted(job.e2e_s for job in jobs)
    end_s = max((job.last_s or 0.0) for job in jobs)
    num_good = sum(job.meets(slo.ttft_s, slo.tpot_s) for job in jobs)
    return Summary(
        policy=policy,
        num_requests=len(jobs),
        hit_rate=sum(job.cached_tokens for job in jobs) / sum(job.num_tokens for job in jobs),
        ttft_mean_s=mean(ttft_s),
        ttft_p50_s=percentile(ttft_s, 50),
        ttft_p90_s=percentile(ttft_s, 90),
        ttft_p99_s=percentile(ttft_s, 99),
        tpot_mean_s=mean(tpot_s),
        tpot_p99_s=percentile(tpot_s, 99),
        e2e_mean_s=mean(e2e_s),
        e2e_p99_s=percentile(e2e_s, 99),
        goodput=num_good / max(end_s, 1e-9),
        good=num_good / len(jobs),
        busiest=_busiest(jobs, num_workers),
        ttft_error_p90=_ttft_error_p90(jobs),
        num_unused=num_workers - len({job.worker for job in jobs if job.worker is not None}),
    )


def curves(jobs: Sequence[ReplayJob]) -> Curves:
    end = max(job.at for job in jobs) or 1.0
    cached, asked = [0] * POINTS, [0] * POINTS
    for job in jobs:
        slot = min(int(job.at / end * POINTS), POINTS - 1)
        cached[slot] += job.cached_tokens
        asked[slot] += job.num_tokens
    full = [i for i in range(POINTS) if asked[i]]
    return Curves(
        array("d", sorted(job.ttft_s for job in jobs)),
        array("d", [(i + 0.5) / POINTS * end for i in full]),
        array("d", [cached[i] / asked[i] for i in full]),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Smallest value that so many of them do not exceed."""
    return ordered[max(-int(-len(ordered) * percent // 100) - 1, 0)]


def _ttft_error_p90(jobs: Sequence[ReplayJob]) -> float | None:
    """Error of the predicted TTFT of requests that were sent once."""
    errors = [
        abs(job.decision.ttft_s - job.ttft_s) / max(job.ttft_s, LEAST_TTFT_S)
        for job in jobs
        if job.num_attempts == 1 and job.decision is not None and job.decision.ttft_s is not None
    ]
    return percentile(sorted(errors), 90) if errors else None


def _busiest(jobs: Sequence[ReplayJob], num_workers: int) -> float:
    computed: Counter[str] = Counter()
    for job in jobs:
        if job.worker is not None:
            computed[job.worker] += job.num_tokens - job.cached_tokens
    total = sum(computed.values())
    return max(computed.values()) * num_workers / total if total else 1.0


TITLES = ("policy", "hit rate", "TTFT mean", "p50", "p90", "p99", "TPOT mean", "p99", "E2E mean", "p99",
          "goodput/s", "good", "busiest")  # fmt: skip


def table(rows: Sequence[Summary]) -> list[str]:
    """Table of summaries: seconds, except TPOT in milliseconds."""
    cells = [
        (
            row.policy,
            f"{row.hit_rate:.3f}",
            f"{row.ttft_mean_s:.3f}",
            f"{row.ttft_p50_s:.3f}",
            f"{row.ttft_p90_s:.3f}",
            f"{row.ttft_p99_s:.3f}",
            f"{row.tpot_mean_s * 1000:.1f}",
            f"{row.tpot_p99_s * 1000:.1f}",
            f"{row.e2e_mean_s:.2f}",
            f"{row.e2e_p99_s:.2f}",
            f"{row.goodput:.3f}",
            f"{row.good:.1%}",
            f"{row.busiest:.2f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(TITLES, *cells, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (TITLES, *cells)
    ]
