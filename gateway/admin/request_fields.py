"""Fields of /admin/requests and /admin/traffic, as those of `admin/fields.py`."""

from typing import Annotated as A

from gateway.admin.fields import FIRST, SUM, View


class RequestView(View):
    id: A[str, "id of its decision, for `/admin/decisions/ID`"]
    request_id: A[str, "the client's `x-request-id`, or a generated one"]
    at: A[float, FIRST, "Unix time of its end"]
    model: A[str, "model"]
    tenant: A[str | None, "tenant"]
    worker: A[str, "worker"]
    prompt_tokens: A[int, FIRST, "prompt tokens, as the engine reported, else as counted"]
    predicted_cached_tokens: A[int, FIRST, "cached tokens, as predicted"]
    reported_cached_tokens: A[int | None, FIRST, "cached tokens, as the engine reported"]
    output_tokens: A[int | None, FIRST, "output tokens, as the engine reported"]
    predicted_ttft_s: A[float | None, FIRST, "predicted TTFT"]
    ttft_s: A[float | None, FIRST, "TTFT"]
    total_s: A[float | None, FIRST, "seconds from arrival to end; null: another attempt followed"]
    status: A[int, FIRST, "status of the answer"]
    result: A[str, "`ended`, `aborted`, `failed` or `client_disconnected`"]


class RequestsView(View):
    requests: A[list[RequestView], "newest decisions first, of each process"]


class PooledView(View):
    missed_tokens: A[int, SUM, "estimate of `block_tokens` that one cache of the fleet's size would miss"]
    block_tokens: A[int, SUM, "prompt tokens in full blocks"]
    prompt_tokens: A[int, SUM, "prompt tokens"]


class TrafficIntervalView(View):
    id: A[int, FIRST, "Unix time of its beginning, in tens of seconds"]
    answers: A[dict[str, int], SUM, "requests that ended, by class of status"]
    errors: A[dict[str, int], SUM, "errors that the gateway answered, by code"]
    prompt_tokens: A[int, SUM, "prompt tokens sent to workers"]
    output_tokens: A[int, SUM, "output tokens, as engines report"]
    reported_prompt_tokens: A[int, SUM, "prompt tokens of answers that reported cached ones"]
    reported_cached_tokens: A[int, SUM, "of `reported_prompt_tokens`, cached"]
    predicted_cached_tokens: A[int, SUM, "of `reported_prompt_tokens`, predicted to be cached"]
    ttft: A[dict[str, int], SUM, "first tokens by TTFT: bounds in seconds"]
    itl: A[dict[str, int], SUM, "tokens by the time since the previous one"]
    e2e: A[dict[str, int], SUM, "2xx answers by time from arrival to end"]
    pooled: A[PooledView | None, "estimate for one cache of the fleet's size; null: not known"] = None


class TrafficView(View):
    interval_s: A[int, FIRST, "length of an interval"]
    intervals: A[list[TrafficIntervalView], "intervals with traffic, oldest first"]
