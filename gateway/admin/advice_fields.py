"""Fields of /admin/advice, as those of `admin/fields.py`."""

from typing import Annotated as A

from gateway.admin.fields import MAX, MEAN, MIN, SUM, View


class RemovalView(View):
    worker: A[str, "worker"]
    unique_cached_tokens: A[int | None, MAX, "tokens that are cached at no other worker; null: not known"]


class DemandView(View):
    requests_per_s: A[float, SUM, "requests"]
    prompt_tokens_per_s: A[float, SUM, "prompt tokens to compute: those that are not cached"]
    output_tokens_per_s: A[float, SUM, "output tokens"]


class WorkerCapacityView(View):
    requests_per_s: A[float, MEAN, "requests"]
    prompt_tokens_per_s: A[float, MEAN, "prompt tokens to compute"]
    output_tokens_per_s: A[float, MEAN, "output tokens"]


class GroupAdviceView(View):
    id: A[str, "model and role, as in `llama:both`"]
    model: A[str, "the first name of its workers"]
    role: A[str, "`prefill`, `decode` or `both`"]
    workers: A[int, MAX, "workers that accept requests"]
    is_idle: A[bool, "no request came in the last minute, and none waits or runs"]
    desired_workers: A[float, SUM, "workers that meet the objectives, smoothed; round it up"]
    needed_workers: A[float, SUM, "the same for the last minute, not smoothed"]
    needed_low: A[float, SUM, "lower end of an interval of 90 %"]
    needed_high: A[float, SUM, "upper end of it"]
    utilization: A[float | None, SUM, "needed workers relative to those that accept requests"]
    objective_is_reachable: A[bool, "an idle worker meets the objectives"]
    slo_attainment: A[
        float | None, MIN, "share of requests in five minutes that met the objective; null: no requests"
    ]
    ttft_s: A[float | None, MAX, "predicted TTFT of a request that arrives now; null: no worker"]
    backlog_s: A[float | None, MAX, "seconds until the waiting prompts are computed; null: no worker"]
    backlog_tokens: A[int, MAX, "prompt tokens that wait to be computed"]
    queued_requests: A[int, SUM, "requests that wait in the gateway"]
    demand: A[DemandView, "load of the requests that arrive"]
    worker_capacity: A[
        WorkerCapacityView, "load of such requests that one worker serves within the objectives"
    ]
    cold_start_s: A[float | None, MEAN, "time from needing a worker to its join; null: not seen yet"]
    remove: A[list[RemovalView], "workers by the cost of removing them, the cheapest first"]


class SplitAdviceView(View):
    model: A[str, "model"]
    prefill_share: A[float, MEAN, "share of prefill workers at which most requests meet the objectives"]
    prefill_share_low: A[float, MEAN, "lower end of an interval of 90 %, as few requests were seen"]
    prefill_share_high: A[float, MEAN, "upper end of it"]
    prefill_workers: A[
        float | None, MEAN, "advised prefill workers, of as many as accept requests; null: fewer than two"
    ]
    decode_workers: A[float | None, MEAN, "advised decode workers, the rest of these"]
    requests_per_s: A[float, MEAN, "requests that the advised workers serve within the objectives"]
    present_requests_per_s: A[float, MEAN, "requests that the workers of now do"]


class AdviceView(View):
    groups: A[list[GroupAdviceView], "models and roles"]
    prefill_decode: A[list[SplitAdviceView], "models with prefill and decode workers that have requests"]
