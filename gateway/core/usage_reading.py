"""Reading of the token counts that an engine reports of an answer, validated here before anything counts with
them.

A worker is not trusted with these numbers: they fill counters and tenants' token buckets, teach speeds,
verify predictions, and are recorded. A usage is taken whole or refused whole:

    0 ≤ cached ≤ prompt ≤ limit.prompt        0 ≤ output ≤ limit.output

Each count is an integer: no boolean, no fraction, no text. The limits follow from the longest prompt that the
worker says it takes, and from how many prompts and answers the request is about.
"""

import msgspec

from gateway.core.decision import Decision
from gateway.core.decode_errors import UNREADABLE
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind, route_of
from gateway.core.usage import (
    MAX_ANSWERS,
    MAX_LEN,
    MAX_TURNS,
    NULL,
    WIDEST,
    AnswerWithUsage,
    Details,
    LlamaTimings,
    MessageStart,
    RefusedUsage,
    ReportedUsage,
    Usage,
    UsageLimit,
)
from gateway.core.worker import Worker

_decode_answer = msgspec.json.Decoder(AnswerWithUsage).decode
_decode_beginning = msgspec.json.Decoder(MessageStart).decode
_decode_usage = msgspec.json.Decoder(ReportedUsage | None).decode
_decode_timings = msgspec.json.Decoder(LlamaTimings | None).decode


def without_hits(usage: Usage) -> Usage:
    """The same usage without its cached tokens, where those say nothing about earlier requests."""
    return Usage(usage.prompt_tokens, usage.completion_tokens)


def of_own_cache(usage: Usage, decision: Decision) -> Usage:
    """A usage as a statement about the cache of the decision's worker: the cached tokens of a prompt that
    another worker computed are that worker's, or count what it sent."""
    return without_hits(usage) if decision.split is not None and decision.split.prefill is not None else usage


def read_usage(body: bytes, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
    """The usage of a complete JSON answer or of one event's data; None where there is none."""
    try:
        found = _decode_answer(body)
    except UNREADABLE:
        return None
    raw = found.usage
    if bytes(raw) == b"null":
        raw = found.meta_info if found.response is None else found.response.usage
    usage = judged(raw, limit)
    if isinstance(usage, Usage) and usage.cached_tokens is None and found.timings is not NULL:
        return _with_timings(usage, found.timings)
    return usage


def read_beginning(event: bytes, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
    """Return the usage at the beginning of a streamed message (`message_start` of /v1/messages): its prompt;
    None where there is none."""
    try:
        return judged(_decode_beginning(event).message.usage, limit)
    except UNREADABLE:
        return None


def _with_timings(usage: Usage, raw: msgspec.Raw) -> Usage:
    """The usage with the cached tokens of llama.cpp's `timings`, which older versions report only there."""
    try:
        timings: LlamaTimings | None = _decode_timings(raw)
    except UNREADABLE:
        return usage
    if timings is None or timings.cache_n > usage.prompt_tokens:
        return usage
    return Usage(usage.prompt_tokens, usage.completion_tokens, timings.cache_n)


def judged(raw: msgspec.Raw, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
    """A `usage` as it came."""
    try:
        reported: ReportedUsage | None = _decode_usage(raw)
    except UNREADABLE as exc:
        return RefusedUsage(str(exc))
    if reported is None:
        return None
    usage = _usage(reported)
    prompt, output, cached = usage.prompt_tokens, usage.completion_tokens or 0, usage.cached_tokens or 0
    if prompt > limit.prompt:
        return RefusedUsage(f"{_shown(prompt)} prompt tokens where {limit.prompt} are possible")
    if output > limit.output:
        return RefusedUsage(f"{_shown(output)} generated tokens where {limit.output} are possible")
    if cached > prompt * limit.num_answers:
        return RefusedUsage(f"{_shown(cached)} cached tokens of a prompt of {prompt}")
    if cached > prompt:
        return Usage(prompt, usage.completion_tokens, prompt)
    return usage


def _usage(reported: ReportedUsage) -> Usage:
    if reported.input_tokens is None and reported.output_tokens is not None:
        return Usage(0, reported.output_tokens)  # the end of a message: its beginning has counted the prompt
    if reported.input_tokens is None:
        details = reported.prompt_tokens_details
        prompt, output = reported.prompt_tokens or 0, reported.completion_tokens
        return _with_cached(prompt, output, details, msgspec.UNSET)
    read, made = reported.cache_read_input_tokens, reported.cache_creation_input_tokens
    prompt = reported.input_tokens + (read or 0) + (made or 0)
    return _with_cached(prompt, reported.output_tokens, reported.input_tokens_details, read)


def _with_cached(
    prompt: int,
    output: int | None,
    details: "Details | None | msgspec.UnsetType",
    read: "int | None | msgspec.UnsetType",
) -> Usage:
    """The usage with cached tokens from its details, or else those that were read; see `Usage.has_null`."""
    cached = details.cached_tokens if isinstance(details, Details) else read
    if isinstance(cached, int):
        return Usage(prompt, output, cached)
    if cached is None or details is None:
        return Usage(prompt, output, None, True)
    return Usage(prompt, output, None, None if isinstance(details, Details) else False)


def limit_of(request: InferenceRequest, decision: Decision | None) -> UsageLimit:
    """The largest usage that the chosen worker can report for this request."""
    if decision is None:
        return WIDEST
    longest, kind = _longest(decision.worker), request.kind
    if kind is RouteKind.CHAT or kind is RouteKind.COMPLETION:
        top = request.top
        num_answers = max(_num_answers(top.get("n")), _num_answers(top.get("best_of")))
        num_prompt_tokens = longest * (request.num_prompts if kind is RouteKind.COMPLETION else 1)
        return UsageLimit(num_prompt_tokens, num_prompt_tokens * num_answers, num_answers)
    if kind is RouteKind.AGENT and not route_of(request.path).keeps_state:
        return UsageLimit(longest, longest)
    # A response has turns; anything else, inputs of a byte at least.
    num = MAX_TURNS if kind is RouteKind.AGENT else max(len(request.body), MAX_TURNS)
    return UsageLimit(longest * num, longest * num)


def _num_answers(given: object) -> int:
    return min(max(given, 1), MAX_ANSWERS) if type(given) is int else 1


def _longest(worker: Worker) -> int:
    """Tokens of a sequence, by the models that it lists before its adapters."""
    longest = 0
    for served in worker.served:
        if served.adapter is not None:
            break
        longest = max(longest, served.max_model_len or MAX_LEN)
    return longest or MAX_LEN


def _shown(count: int) -> str:
    return str(count) if count < 10**18 else "over 10^18"
