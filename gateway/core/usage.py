"""Token counts that an engine reports of an answer, validated here before anything counts with them.

A worker is not trusted with these numbers: they fill counters and tenants' token buckets, teach speeds,
verify predictions, and are recorded. A usage is taken whole or refused whole:

    0 ≤ cached ≤ prompt ≤ limit.prompt        0 ≤ output ≤ limit.output

Each count is an integer: no boolean, no fraction, no text. The limits follow from the longest prompt that the
worker says it takes, and from how many prompts and answers the request is about.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from gateway.core.decision import Decision
from gateway.core.decoding import LARGE, UNREADABLE
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import RouteKind, route_of
from gateway.core.worker import Worker

MAX_LEN = 1 << 24
"""Tokens of a sequence at a worker that does not say; the longest contexts today are 10 million."""
MAX_ANSWERS = 1 << 14
"""Answers of one request: as many as vLLM gives at most (VLLM_MAX_N_SEQUENCES)."""
MAX_TURNS = 128
"""Turns of a response: with tools of the engine's own, each turn's prompt is counted again."""


@dataclass(frozen=True, slots=True)
class UsageLimit:
    """The most tokens that an answer can be about. SGLang adds up the cached tokens of each of `num_answers`
    to a prompt, and counts the prompt once."""

    prompt: int
    output: int
    num_answers: int = 1


WIDEST = UsageLimit(MAX_LEN * MAX_TURNS, MAX_LEN * MAX_TURNS, MAX_ANSWERS)
"""Where it is not known what was asked."""


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the engine reported them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


def without_hits(usage: Usage) -> Usage:
    """The same usage without its cached tokens, where those say nothing about earlier requests."""
    return Usage(usage.prompt_tokens, usage.completion_tokens)


def of_own_cache(usage: Usage, decision: Decision) -> Usage:
    """A usage as a statement about the cache of the decision's worker: the cached tokens of a prompt that
    another worker computed are that worker's, or count what it sent."""
    return without_hits(usage) if decision.prefill is not None else usage


class RefusedUsage(msgspec.Struct, frozen=True):
    """A usage that cannot be, and why, in words."""

    why: str


class _Reported(msgspec.Struct):
    """Usage by any of the routes: that of /v1/messages counts cached tokens apart from its input."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None

    def usage(self) -> Usage:
        if self.input_tokens is None:
            return Usage(self.prompt_tokens or 0, self.completion_tokens, self.prompt_tokens_details)
        read, made = self.cache_read_input_tokens, self.cache_creation_input_tokens
        apart = None if read is None else _Details(read)
        total = self.input_tokens + (read or 0) + (made or 0)
        return Usage(total, self.output_tokens, self.input_tokens_details or apart)


_NULL = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _Timings(msgspec.Struct):
    """llama.cpp's own: the tokens of a prompt that came from the cache."""

    cache_n: Count


class _WithUsage(msgspec.Struct):
    usage: msgspec.Raw = _NULL
    response: _Response | None = None
    timings: msgspec.Raw = _NULL


_decode_answer = msgspec.json.Decoder(_WithUsage).decode
_decode_usage = msgspec.json.Decoder(_Reported | None).decode
_decode_timings = msgspec.json.Decoder(_Timings | None).decode


def read_usage(body: bytes, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
    """The usage of a complete JSON answer or of one event's data; None where there is none."""
    try:
        found = _decode_answer(body)
    except UNREADABLE:
        return None
    raw = found.usage
    if found.response is not None and bytes(raw) == b"null":
        raw = found.response.usage
    usage = judged(raw, limit)
    if isinstance(usage, Usage) and usage.cached_tokens is None:
        return _with_timings(usage, found.timings)
    return usage


def _with_timings(usage: Usage, raw: msgspec.Raw) -> Usage:
    """The usage with the cached tokens of llama.cpp's `timings`, which older versions report only there."""
    try:
        timings: _Timings | None = _decode_timings(raw)
    except UNREADABLE:
        return usage
    if timings is None or timings.cache_n > usage.prompt_tokens:
        return usage
    return Usage(usage.prompt_tokens, usage.completion_tokens, _Details(timings.cache_n))


def judged(raw: msgspec.Raw, limit: UsageLimit = WIDEST) -> Usage | RefusedUsage | None:
    """A `usage` as it came."""
    try:
        reported: _Reported | None = _decode_usage(raw)
    except UNREADABLE as exc:
        return RefusedUsage(str(exc))
    if reported is None:
        return None
    usage = reported.usage()
    prompt, output, cached = usage.prompt_tokens, usage.completion_tokens or 0, usage.cached_tokens or 0
    if prompt > limit.prompt:
        return RefusedUsage(f"{_shown(prompt)} prompt tokens where {limit.prompt} are possible")
    if output > limit.output:
        return RefusedUsage(f"{_shown(output)} generated tokens where {limit.output} are possible")
    if cached > prompt * limit.num_answers:
        return RefusedUsage(f"{_shown(cached)} cached tokens of a prompt of {prompt}")
    if cached > prompt:
        return Usage(prompt, usage.completion_tokens, _Details(prompt))
    return usage


def limit_of(request: InferenceRequest, decision: Decision | None) -> UsageLimit:
    """The largest usage that the chosen worker can report for this request."""
    if decision is None:
        return WIDEST
    longest, kind = _longest(decision.worker), request.kind
    is_small = request.messages is not None or len(request.body) < LARGE  # a large one is not decoded for it
    if is_small and (kind is RouteKind.CHAT or kind is RouteKind.COMPLETION):
        top = request.messages.top if request.messages is not None else request.fields
        num_prompts = _num_prompts(top.get("prompt"))
        num_answers = max(_num_answers(top.get("n")), _num_answers(top.get("best_of")))
        num_prompt_tokens = longest * num_prompts
        return UsageLimit(num_prompt_tokens, num_prompt_tokens * num_answers, num_answers)
    if kind is RouteKind.AGENT and not route_of(request.path).keeps_state:
        return UsageLimit(longest, longest)
    # A response has turns; anything else, inputs of a byte at least.
    num = MAX_TURNS if kind is RouteKind.AGENT else max(len(request.body), MAX_TURNS)
    return UsageLimit(longest * num, longest * num)


def _num_prompts(prompt: object) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


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
