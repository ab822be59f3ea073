"""Attribution of recomputed tokens: the cause of each token's loss, determined when the request is sent.

    prompt   ├── cached here ┤─ cached elsewhere ─┤─ was cached once ─┤─ text known elsewhere ─┤─ new ─┤
    engine   ├── cached ──┤────────────────────── computed ──────────────────────────────────────────┤

The engine then reports how many tokens were cached; the causes of the other tokens are counted. A prompt's
parts are contiguous, so that causes and new text always add up to the computed tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class LossCause(Enum):
    """Why a token that had been cached was computed again."""

    EVICTED = "evicted"
    ROUTED_AWAY = "routed_away"
    WORKER_RESTARTED = "worker_restarted"
    OTHER_SALT = "other_salt"
    OTHER_ADAPTER = "other_adapter"
    TOKENIZER_DRIFT = "tokenizer_drift"
    BROKEN_PREFIX = "broken_prefix"


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Tokens up to `end` from the end of the part before; `cause` is None for new text."""

    end: int
    cause: LossCause | None


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens from `start` up to `end`."""

    start: int
    end: int


def lay_out(num_tokens: int, layers: Iterable[tuple[TokenSpan, LossCause]]) -> list[TokenSegment]:
    """Parts that cover all tokens. Where spans overlap, the first one counts; tokens in no span are new."""
    causes = [(span, cause) for span, cause in layers if span.start < span.end]
    if not causes:
        return [TokenSegment(num_tokens, None)] if num_tokens else []
    borders = {num_tokens}
    for span, _ in causes:
        borders.add(min(span.start, num_tokens))
        borders.add(min(span.end, num_tokens))
    parts: list[TokenSegment] = []
    start = 0
    for end in sorted(borders):
        if end <= 0:
            continue
        cause = None
        for span, of_span in causes:
            if span.start <= start and end <= span.end:
                cause = of_span
                break
        if parts and parts[-1].cause is cause:
            parts.pop()
        parts.append(TokenSegment(end, cause))
        start = end
    return parts


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Computed tokens of one prompt: recomputed ones by cause, and new ones."""

    lost: dict[LossCause, int]
    num_new: int


def settle(parts: Sequence[TokenSegment], cached: int, num_prompt: int, evicted_end: int = 0) -> TokenAccount:
    """The account of a prompt with `cached` of `num_prompt` tokens, as the engine reported. Tokens beyond our
    own count are new; computed tokens before `evicted_end` had been evicted after the decision."""
    lost: dict[LossCause, int] = {}
    end = max(num_prompt, 0)
    at = first = min(max(cached, 0), end)
    if (evicted_end := min(evicted_end, end)) > at:
        lost[LossCause.EVICTED] = evicted_end - at
        at = evicted_end
    for part in parts:
        part_end = min(part.end, end)
        if part_end > at:
            if part.cause:
                lost[part.cause] = lost.get(part.cause, 0) + part_end - at
            at = part_end
    return TokenAccount(lost, end - first - sum(lost.values()))
