"""Advice as /admin/advice reports it."""

from collections.abc import Sequence
from typing import Any

from gateway.scaling.advice import Advice
from gateway.scaling.capacity import Mix
from gateway.scaling.split import SplitAdvice

MAX_REMOVALS = 100
"""Workers listed by the cost of their loss."""


def describe(advices: Sequence[Advice], splits: Sequence[SplitAdvice] = ()) -> dict[str, Any]:
    return {
        "groups": [_group(each) for each in advices],
        "prefill_decode": [_split(each) for each in splits],
    }


def _group(advice: Advice) -> dict[str, Any]:
    removals = advice.removals[:MAX_REMOVALS]
    return {
        "id": f"{advice.model}:{advice.role.value}",
        "model": advice.model,
        "role": advice.role.value,
        "workers": advice.num_up,
        "is_idle": not advice.is_active,
        "desired_workers": advice.level,
        "needed_workers": advice.needed,
        "needed_low": advice.low,
        "needed_high": advice.high,
        "utilization": advice.utilization,
        "objective_is_reachable": advice.is_reachable,
        "slo_attainment": advice.attainment,
        "ttft_s": advice.ttft_s,
        "backlog_s": advice.backlog_s,
        "backlog_tokens": advice.backlog_tokens,
        "queued_requests": advice.num_queued,
        "demand": _rates(advice.requests_per_s, advice.mix),
        "worker_capacity": _rates(advice.worker_requests_per_s, advice.mix),
        "cold_start_s": advice.cold_start_s,
        "remove": [
            {"worker": each.worker, "unique_cached_tokens": each.unique_cached_tokens} for each in removals
        ],
    }


def _rates(requests_per_s: float, mix: Mix) -> dict[str, float]:
    return {
        "requests_per_s": requests_per_s,
        "prompt_tokens_per_s": requests_per_s * mix.prompt_tokens,
        "output_tokens_per_s": requests_per_s * mix.output_tokens,
    }


def _split(advice: SplitAdvice) -> dict[str, Any]:
    return {
        "model": advice.model,
        "prefill_share": advice.share,
        "prefill_share_low": advice.low,
        "prefill_share_high": advice.high,
        "prefill_workers": advice.workers.prefill if advice.workers else None,
        "decode_workers": advice.workers.decode if advice.workers else None,
        "requests_per_s": advice.requests_per_s,
        "present_requests_per_s": advice.up_requests_per_s,
    }
