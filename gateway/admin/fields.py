"""Fields of the admin API's answers: type, meaning, and how several processes' values become one.

`Annotated[type, rule, meaning]`. A number without a rule fails where several processes start, and in a test;
all else is merged by its type (`processes/json_merge.py`). `make docs` writes docs/reference/admin-api.md.
"""

from enum import Enum
from typing import Annotated as A

import msgspec


class MergeRule(Enum):
    """How the values of several processes become one."""

    SUM = "added up: each process counts its own"
    MEAN = "averaged: processes have the same share of the load"
    MAX = "the highest: each process sees the same thing"
    MIN = "the lowest: the cautious value"
    FIRST = "taken whole from the first process"
    WORST = "the worst of the states"


SUM, MEAN, MAX, MIN, FIRST, WORST = (
    MergeRule.SUM,
    MergeRule.MEAN,
    MergeRule.MAX,
    MergeRule.MIN,
    MergeRule.FIRST,
    MergeRule.WORST,
)


class View(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of one JSON object of an answer; a field with a default may be missing."""


class CacheView(View):
    entries: A[int, SUM, "entries kept"]
    bytes: A[int, SUM, "memory used"]
    max_bytes: A[int, SUM, "limit on memory"]


# /admin/workers ----------------------------------------------------------------------------------


class VerificationCountsView(View):
    compared: A[int, SUM, "answers with a compared prediction"]
    unknown: A[int, SUM, "answers with more cached than kvgate can know, not compared"]
    exact_share: A[
        float | None,
        MIN,
        "share of right predictions lately; without blocks, right to a block",
    ]
    mean_error_tokens: A[float | None, MAX, "mean error, cached minus predicted tokens"]
    mean_absolute_error_tokens: A[float | None, MAX, "mean absolute error"]
    confidence: A[float, MIN, "factor on predicted overlaps"]
    token_parity: A[str, WORST, "`differ` where the engine tokenizes prompts differently"]


class BlindRecoveryView(View):
    reason: A[str, "why a part of the cache is unknown"]
    proven_blocks: A[int, MAX, "blocks that answers proved"] = 0
    orphan_blocks: A[int, MAX, "reported blocks without a known parent"] = 0
    adopted_orphan_blocks: A[int, MAX, "orphans that a proof placed"] = 0
    disproven_blocks: A[int, MAX, "proven blocks that were withdrawn"] = 0
    announcements: A[int, MAX, "reports requested of the engine"] = 0


class TokenSourceView(View):
    model: A[str, "model root"]
    source: A[str, WORST, "`local`, `remote` (the worker's /tokenize) or `none`"]
    reason: A[str, "why that one"]


class WorkerTrafficView(View):
    requests: A[int, SUM, "requests sent"]
    ttft: A[dict[str, int], SUM, "first tokens by TTFT: bounds in seconds"]
    prompt_tokens: A[int, SUM, "prompt tokens sent"]
    predicted_cached_tokens: A[int, SUM, "of these, predicted to be cached"]
    reported_prompt_tokens: A[int, SUM, "prompt tokens of answers that reported cached ones"]
    reported_cached_tokens: A[int, SUM, "of these, cached"]


class WorkerView(View):
    id: A[str, "host and port, with `#rank` where an endpoint has several DP ranks"]
    is_up: A[bool, "answers health checks, or answers, events or metrics while these are late"]
    is_late: A[bool, "its last health check timed out"]
    state: A[str, WORST, "lifecycle state"]
    reason: A[str | None, "why it is in that state"]
    share: A[float, MIN, "share of its load during slow start, else 1"]
    remaining_requests: A[int, MAX, "requests that still need it"]
    since: A[float | None, MAX, "Unix time of its last change of state"]
    ejections: A[dict[str, int], MAX, "ejections by reason"]
    models: A[list[str], "names that it serves"]
    unusable_models: A[dict[str, str], "names that get no requests here, with the reason"]
    block_size: A[int | None, MAX, "tokens per block; null: routed by load"]
    cache_blocks: A[int | None, MAX, "cache size in blocks"]
    in_flight: A[int, MAX, "requests in flight, of this host's processes"]
    booked_tokens: A[int, MAX, "prompt tokens booked and not computed"]
    remote_in_flight: A[int, MAX, "requests in flight, of other gateways"]
    running: A[int | None, MAX, "requests running, as the engine reports; null: it does not"]
    waiting: A[int | None, MAX, "requests waiting, as the engine reports; null: it does not"]
    kv_usage: A[float | None, MAX, "share of the cache in use, as the engine reports; null: it does not"]
    failed_requests: A[int, SUM, "failed attempts"]
    stream: A[str | None, WORST, "state of the KV event stream"]
    blind: A[BlindRecoveryView | None, "for a BLIND or unproven stream: why, and what is recovered"]
    excluded_pairs: A[dict[str, str], "decode workers that it must not prefill for, with the reason"]
    predictions: A[VerificationCountsView, "accuracy of the predictions"]
    traffic: A[WorkerTrafficView, "requests since the start of the gateway"]
    prefill_tokens_per_s: A[float | None, MEAN, "speed learnt; null: not seen yet"]
    events: A[str | None, "endpoint of its KV events"]
    agent: A[str | None, "endpoint of its agent"]
    replay: A[str | None, "replay endpoint"]
    events_connected: A[bool, "connected to the event endpoint"]


class EndpointView(View):
    url: A[str, "base URL"]
    state: A[str, WORST, "`joining`, `joined` or `down`"]
    is_draining: A[bool, "gets no new requests"]
    engine: A[str | None, "engine"]
    version: A[str | None, "engine version"]
    role: A[str | None, "`prefill`, `decode` or `both`"]
    spec: A[str, "the specification that names it (`--worker`)"]
    is_discovered: A[bool, "found by a `dns+` or `k8s://` URL"]
    last_error: A[str | None, "why the last probe failed"]
    token_sources: A[list[TokenSourceView], "who tokenizes its prompts"]
    workers: A[list[WorkerView], "its workers, one per DP rank"]


class SourceView(View):
    url: A[str, "`dns+` or `k8s://` URL"]
    spec: A[str, "the specification that names it"]
    members: A[list[str], "URLs of its workers"]
    last_error: A[str | None, "why the last lookup failed, or why it found fewer workers"] = None


class RemovedEndpointView(View):
    url: A[str, "base URL"]
    state: A[str, "`removed`"]
    reason: A[str, "why it was removed"]
    at: A[float, MAX, "Unix time"]


class FleetView(View):
    endpoints: list[EndpointView]
    sources: A[list[SourceView], "`dns+` and `k8s://` URLs, which stand for several workers"]
    drains: A[list[str], "draining endpoints, as `draining=URL`, or `removing=URL` if they are removed then"]
    removed: A[list[RemovedEndpointView], "endpoints removed lately"]
    in_panic: A[
        dict[str, int],
        MAX,
        "models with too few healthy workers, and how many workers with late probes get their requests",
    ]


# /admin/index ------------------------------------------------------------------------------------


class AppliedEventsView(View):
    stored_blocks: A[int, MAX, "blocks stored"]
    removed_blocks: A[int, MAX, "blocks removed"]
    orphan_blocks: A[int, MAX, "blocks with an unknown parent"]
    unknown_removals: A[int, MAX, "removals of unknown blocks"]
    mismatched_events: A[int, MAX, "stores with tokens that do not fit their blocks"]
    unknown_events: A[int, MAX, "events of an unknown kind, or of more media or groups than are followed"]
    unplaced_blocks: A[dict[str, int], MAX, "blocks that cannot be placed, by medium other than the GPU"]


class WorkerIndexView(View):
    worker: A[str, "worker id"]
    stream: A[str | None, WORST, "state of the KV event stream"]
    blocks: A[int, MAX, "blocks that its events report"]
    assumed_blocks: A[int, SUM, "blocks assumed from answers"]
    pinned_blocks: A[int, SUM, "blocks of requests in flight"]
    applied: A[AppliedEventsView, "events applied"]


class IndexView(View):
    index: A[str, "the index"]
    assumed: A[str, "the index of assumed blocks"]
    workers: list[WorkerIndexView]


# /admin/tokenizer --------------------------------------------------------------------------------


class TemplateView(View):
    name: A[str, "chat template"]
    mode: A[str, "`incremental`: renders what is new in a conversation; or `whole`"]
    reason: A[str, "why that one"]


class WorkerTokensView(View):
    worker: A[str, "endpoint"]
    source: A[str, WORST, "token source"]
    reason: A[str, "why that one"]


class ModelTokenizerView(View):
    model: A[str, "model root"]
    rendering: A[str, "engine and version that prompts are rendered as"] = ""
    source: A[str, WORST, "token source"] = ""
    tokenizer: A[str, WORST, "state of its tokenizer"] = ""
    from_: A[str | None, "where it was found"] = msgspec.field(name="from", default=None)
    tokenizer_reason: A[str | None, "why it is not loaded"] = None
    encoder: A[str | None, "encoder in use"] = None
    encoder_reason: A[str, "why this encoder"] = ""
    templates: list[TemplateView] = []
    segments: A[CacheView | None, "segments of text"] = None
    workers: A[list[WorkerTokensView], "token source of each of its workers"] = []


class CallOutcomeView(View):
    name: A[str, "outcome"]
    calls: A[int, SUM, "calls"]


class TokenizeBudgetView(View):
    url: A[str, "worker"]
    wait_s: A[float, MAX, "longest wait for its tokens of a short prompt, in seconds"]


class RemoteTokenizersView(CacheView):
    calls: A[list[CallOutcomeView], "calls of workers' /tokenize"]
    budgets: A[list[TokenizeBudgetView], "time that each of these workers gets"]
    paused: A[list[str], "workers that are not asked for a while"]


class TokenizersView(View):
    models: list[ModelTokenizerView]
    conversations: A[CacheView, "token runs of conversations"]
    remote_tokenizers: A[RemoteTokenizersView, "tokens that workers made"]


# /admin/cache-loss -------------------------------------------------------------------------------


class CauseView(View):
    id: A[str, "cause"]
    recomputed_tokens: A[int, SUM, "tokens computed again"]


class PrefixBreakView(View):
    token: A[int, FIRST, "first token that differs"]
    differing_tokens: A[int, FIRST, "tokens that differ"]
    kind: A[str, "kind of text"]
    message: A[int | None, FIRST, "index of the message"] = None
    role: A[str | None, "role of the message"] = None
    text: A[str | None, "the text, where it may be shown"] = None


class LossView(View):
    id: A[str, "the same in every process"]
    cause: A[str, "cause"]
    model: A[str, "model"]
    worker: A[str | None, "worker that computed again"] = None
    holder: A[str | None, "worker that has the blocks, or had them"] = None
    recomputed_tokens: A[int, SUM, "tokens computed again"] = 0
    recomputed_requests: A[int, SUM, "requests"] = 0
    avoided_queue_tokens: A[int, SUM, "work ahead that routing elsewhere avoided"] = 0
    prefix_break: A[PrefixBreakView | None, FIRST, "where the prompt left the cached one"] = None
    latest_decision_id: A[str, "id of a decision"] = ""


class CacheLossesView(View):
    computed_tokens: A[int, SUM, "prompt tokens computed"]
    new_tokens: A[int, SUM, "of these, never seen before"]
    unattributed_tokens: A[int, SUM, "of these, not attributed to a cause"]
    avoided_queue_tokens: A[int, SUM, "work ahead that routing elsewhere avoided"]
    causes: list[CauseView]
    missed_blocks: A[int, SUM, "blocks cached that the index did not know"]
    largest: A[list[LossView], "the largest losses, by tokens computed again"]
    memory: A[CacheView, "earlier prompts"]


# /admin/verify -----------------------------------------------------------------------------------


class WrongPredictionView(View):
    id: A[str, "id of the decision"]
    predicted_cached_tokens: A[int, FIRST, "cached tokens, as predicted"]
    reported_cached_tokens: A[int, FIRST, "cached tokens, as the engine reported"]
    cause: A[str, "cause"]


class TokenWindowView(View):
    tokens: A[list[int], FIRST, "token ids"]
    text: A[str | None, "their text"]


class FirstDifferenceView(View):
    id: A[str, "id of the decision"]
    model: A[str, "model"]
    gateway_tokens: A[int, FIRST, "tokens made here"]
    engine_tokens: A[int, FIRST, "tokens of the engine"]
    position: A[int | None, FIRST, "first that differs"]
    window_start: A[int | None, FIRST, "position of the windows"]
    gateway_window: A[TokenWindowView, "tokens made here"]
    engine_window: A[TokenWindowView, "tokens of the engine"]


class PromptCheckView(View):
    counted: A[int, SUM, "prompts with compared lengths"]
    counted_differing: A[int, SUM, "of these, differing"]
    sampled: A[int, SUM, "prompts with compared tokens"]
    sampled_differing: A[int, SUM, "of these, differing"]
    first_difference: A[FirstDifferenceView | None, FIRST, "the latest difference"]


class EngineTokensView(View):
    prompt_tokens: A[int | None, MAX, "prompt tokens since it joined, of all traffic"]
    cached_tokens: A[int | None, MAX, "of these, cached"]


class SentTokensView(View):
    prompt_tokens: A[int, SUM, "prompt tokens sent"]
    predicted_cached_tokens: A[int, SUM, "of these, predicted to be cached"]


class VerifiedWorkerView(VerificationCountsView):
    worker: A[str, "worker id"]
    mispredictions: A[dict[str, int], SUM, "wrong predictions by cause"]
    latest_mispredictions: A[list[WrongPredictionView], "the latest wrong predictions, newest first"]
    prompts: A[PromptCheckView, "token parity with the engine"]
    engine: A[EngineTokensView | None, "the engine's own counters"]
    sent: A[SentTokensView, "tokens of requests sent"]


class VerificationView(View):
    workers: list[VerifiedWorkerView]


# /admin/admission -------------------------------------------------------------------------------------


class PriorityView(View):
    name: A[str, "priority"]
    queued_requests: A[int, SUM, "requests queued"]
    queued_prompt_tokens: A[int, SUM, "their prompt tokens"]


class QueueView(View):
    model: A[str, "model"]
    queued_requests: A[int, SUM, "requests queued"]
    queued_prompt_tokens: A[int, SUM, "their prompt tokens"]
    queued_body_bytes: A[int, SUM, "bytes of their bodies"]
    zero_for_s: A[
        float | None, MAX, "seconds that they have waited for the model's first worker; null: one is up"
    ]
    predicted_wait_s: A[
        float, MAX, "predicted seconds until all that wait now have left the queue, as in Retry-After"
    ]
    priorities: A[list[PriorityView], "by priority"]
    exits: A[dict[str, int], SUM, "requests that left the queue, by result"]


class TenantView(View):
    name: A[str, "tenant"]
    in_flight: A[int, SUM, "requests admitted or queued, and not finished"]
    remaining_requests: A[float | None, MIN, "requests left in its token bucket"]
    remaining_tokens: A[int | None, MIN, "tokens left in its token bucket"]
    weight: A[float, MAX, "share of the queue"]


class RejectionView(View):
    id: A[str, "id of the entry"]
    request_id: A[str, "id of the request"]
    model: A[str, "model"]
    tenant: A[str, "tenant"]
    priority: A[int, FIRST, "priority"]
    status: A[int, FIRST, "status of the answer"]
    error: A[str, "error code"]
    message: A[str, "error message"]
    retry_after_s: A[float | None, FIRST, "Retry-After"]
    queued_s: A[float, FIRST, "seconds queued"]


class AdmissionView(View):
    is_enabled: A[bool, "something of admission control is configured"]
    queues: A[list[QueueView], "by model"]
    tenants: A[list[TenantView], "busiest first"]
    rejections: A[list[RejectionView], "the latest rejections, newest first"]


# /admin/policies ---------------------------------------------------------------------------------


class FallbacksView(View):
    name: A[str, "policy"]
    raised: A[int, SUM, "decisions by least load since it raised"] = 0
    invalid: A[int, SUM, "since its answer was invalid"] = 0
    over_budget: A[int, SUM, "since it was late three times in a row"] = 0
    paused: A[int, SUM, "while it is paused for being late"] = 0


class PolicyFileView(View):
    path: A[str, "`--policy-file`"]
    error: A[str | None, "why its latest version is not in use; null: it is"]


class PolicyScoreView(View):
    name: A[str, "policy"]
    share: A[float, MAX, "share of the sessions"]
    requests: A[int, SUM, "requests"]
    failed_requests: A[int, SUM, "requests that failed or were aborted"]
    ttft_p50_s: A[float | None, MEAN, "median TTFT"]
    ttft_p90_s: A[float | None, MEAN, "90th percentile of TTFT"]
    hit_rate: A[float | None, MEAN, "cached prompt tokens over prompt tokens, as engines report"]
    reported_prompt_tokens: A[int, SUM, "prompt tokens, as engines report"]
    reported_cached_tokens: A[int, SUM, "cached tokens, as engines report"]
    predicted_ttft_s: A[float | None, MEAN, "mean predicted TTFT"]
    measured_ttft_s: A[float | None, MEAN, "mean TTFT"]
    prediction_error: A[float | None, MEAN, "mean absolute error over mean TTFT"]


class ShadowView(View):
    name: A[str, "policy"]
    compared: A[int, SUM, "decisions compared"]
    agreed: A[int, SUM, "of these, the same worker"]
    agreement_share: A[float | None, MEAN, "share of these"]
    compared_prompt_tokens: A[int, SUM, "their prompt tokens"]
    shadow_overlap_tokens: A[int, SUM, "overlap at the worker that it would choose"]
    active_overlap_tokens: A[int, SUM, "overlap at the chosen worker"]
    predicted_ttft_s: A[float | None, MEAN, "mean predicted TTFT"]
    measured_ttft_s: A[float | None, MEAN, "mean TTFT of the chosen worker"]
    prediction_error: A[float | None, MEAN, "error where both chose the same worker"]
    raised: A[int, SUM, "decisions by least load since it raised"] = 0
    invalid: A[int, SUM, "since its answer was invalid"] = 0
    over_budget: A[int, SUM, "since it was late three times in a row"] = 0
    paused: A[int, SUM, "while it is paused for being late"] = 0


class PoliciesView(View):
    policy: A[str, "active policy; `ab` for an A/B test"]
    error: A[str | None, "why a policy fails; null: none does"]
    fallbacks: A[list[FallbacksView], "decisions by least load, by policy and reason"]
    file: A[PolicyFileView | None, "the policy file"]
    available: A[list[str], "names of policies"]
    scores: A[list[PolicyScoreView], "each active policy of an A/B test, or with a shadow"] = []
    shadow: A[list[ShadowView], "shadow policies"] = []
    dropped_decisions: A[int, SUM, "decisions that were not compared"] = 0


# decisions, keys, adapters, configuration ----------------------------------------------------------


class DecisionsView(View):
    decisions: A[list[str], "ids, newest first"]


class KeyView(View):
    id: A[str, "key id"]
    tenant: A[str | None, "tenant"]
    models: A[list[str] | None, "models that it is limited to"]
    expires_at: A[float | None, FIRST, "Unix time; null: never"]
    is_admin: A[bool, "has admin scope"]


class KeyFileView(View):
    name: A[str, "`key_file` or `admin_key_file`, the option that names it"]
    path: A[str, "file"]
    digests: A[list[str], "SHA-256 of the version in use; several where processes differ"]
    age_s: A[float, MAX, "seconds since the keys in use were last seen to be the file's"]
    error: A[str | None, "why the file may have other keys by now; null: it was read"]


class KeysView(View):
    keys: A[list[KeyView], "no key and no hash"]
    groups: A[dict[str, str], FIRST, "cache-sharing group of each tenant"]
    file: A[str | None, "`--key-file`"]
    files: A[list[KeyFileView], "key files in use"]


class AdapterView(View):
    name: A[str, "adapter"]
    root: A[str, "root of its base model"]
    workers: A[list[str], "workers that list it"]
    unusable_at: A[list[str], "workers that get no requests for it"]


class AdaptersView(View):
    adapters: list[AdapterView]


class ReloadView(View):
    generation: A[int, FIRST, "number of the configuration"]
    changed: A[list[str], "options that were changed"]
    needs_restart: A[list[str], "options that wait for a restart"]
    workers_added: A[list[str], "workers added"]
    workers_removed: A[list[str], "workers removed"]
