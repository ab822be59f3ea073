"""Recordings of a gateway (`observability/recorder.py`), as jobs.

Prompts are known by the hashes of their full blocks, or by their tokens. Responses are not recorded, but a
later prompt that continues one contains it: the response is taken from there, so that the next turn finds in
an engine what it found then.
"""

import statistics
from array import array
from collections.abc import Iterator, Mapping, Sequence

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId
from gateway.observability.recording import Recorded
from gateway.replay.job import MAX_CLOCK_S, MAX_TOKENS, HashedPrompt, ReplayJob, worker_of
from gateway.replay.line_reader import Lines

UNKNOWN_BLOCK = 512
"""Tokens of a block of prompts with only a known length."""


def playable(lines: Lines) -> list[Recorded]:
    """Completed requests in order of arrival; rows beyond the limits are skipped. Raises ConfigError."""
    rows: list[Recorded] = []
    for row in lines.decoded(Recorded):
        if row.result == "ended" and row.status == 200 and row.prompt_tokens > 0:
            if not _is_within_limits(row):
                lines.skip("a time or a number of tokens is negative or too large, or tokens are truncated")
                continue
            rows.append(row)
    return sorted(rows, key=lambda row: row.at)


def _is_within_limits(row: Recorded) -> bool:
    counts = (row.prompt_tokens, row.output_tokens or 0, row.block_size, row.cache_blocks or 0)
    seconds = (row.at, row.total_s, row.ttft_s or 0.0)
    sizes = all(0 <= num <= MAX_TOKENS for num in counts)
    return sizes and all(0.0 <= s <= MAX_CLOCK_S for s in seconds) and len(row.tokens) % 4 == 0


def recording(lines: Lines) -> Iterator[ReplayJob]:
    rows = playable(lines)
    chains = [_chain(row) for row in rows]
    nexts = _nexts(rows, chains)
    lasts = set(nexts.values())
    token_s = _token_s(rows)
    models = _models(rows, chains)
    places: dict[str, WorkerId] = {}  # in order of their first requests: a limit leaves the first ones
    for i, row in enumerate(rows):
        after = nexts.get(i)
        num_output = row.output_tokens or _num_output(row, token_s)
        prompt = _prompt(row, chains[i], i, chains[after] if after is not None else ())
        output: Sequence[int] = ()
        if after is not None:
            begin, end = row.prompt_tokens, row.prompt_tokens + num_output
            known = _prompt(rows[after], chains[after], after, ())
            tokens = known.tokens() if isinstance(known, HashedPrompt) else known
            output = tokens[begin:end] + array("I", [0]) * (end - max(len(tokens), begin))
        turn = 2 if i in lasts else 1
        place = places.setdefault(row.worker, worker_of(len(places)))
        yield ReplayJob(
            row.at,
            prompt,
            num_output,
            turn,
            output,
            row.session,
            models[row.model],
            recorded=row,
            place=place,
        )


def _models(rows: Sequence[Recorded], chains: Sequence[Sequence[BlockHash]]) -> Mapping[str, str]:
    """Model of each name: two names by which prompts have the same first block's hash are of one model."""
    begins: dict[str, set[BlockHash]] = {}
    for row, chain in zip(rows, chains, strict=True):
        begins.setdefault(row.model, set()).update(chain[:1])
    return {
        name: next(other for other, its in begins.items() if other == name or not its.isdisjoint(mine))
        for name, mine in begins.items()
    }


def _num_output(row: Recorded, token_s: float) -> int:
    return min(max(round((row.total_s - (row.ttft_s or 0.0)) / token_s), 1), MAX_TOKENS)


def _chain(row: Recorded) -> Sequence[BlockHash]:
    return [] if len(row.blocks) % 8 else array("Q", row.blocks)  # type: ignore[return-value]


def _prompt(
    row: Recorded, chain: Sequence[BlockHash], number: int, after: Sequence[BlockHash]
) -> "array[int] | HashedPrompt":
    """Prompt of a row. `after` is the chain of a prompt that continues it, and has the contents of its last,
    partial block; without one no other prompt shares that."""
    if row.tokens:
        return array("I", row.tokens)
    num, size = len(chain), row.block_size
    if not num and row.prompt_tokens >= size:  # unknown
        size = UNKNOWN_BLOCK
        own = [number << 20 | i for i in range(-(-row.prompt_tokens // size))]
        return HashedPrompt(array("Q", own), size, row.prompt_tokens)
    tail = after[num] if num < len(after) else number
    behind = [number << 20 | i for i in range(row.prompt_tokens // max(size, 1) - num)]  # an image, and so on
    return HashedPrompt(array("Q", [*chain, tail, *behind]), size, row.prompt_tokens)


def _nexts(rows: Sequence[Recorded], chains: Sequence[Sequence[BlockHash]]) -> Mapping[int, int]:
    """Prompts that continue others: for each prompt with a response that another contains, that other. It
    came after the response, has all its full blocks and more, and is of its session; or, without sessions,
    more of it was cached than the prompt had."""
    nexts: dict[int, int] = {}
    ends: dict[BlockHash, int] = {}
    for i, (row, chain) in enumerate(zip(rows, chains, strict=True)):
        for depth in range(len(chain) - 1, 0, -1):
            before = ends.get(chain[depth - 1])
            if before is None:
                continue
            earlier = rows[before]
            is_later = earlier.at + earlier.total_s <= row.at
            is_reported = (row.reported_cached_tokens or 0) > depth * row.block_size
            if is_later and (row.session == earlier.session if row.session else is_reported):
                nexts.setdefault(before, i)
                break
        if chain:
            ends[chain[-1]] = i
    return nexts


def _token_s(rows: Sequence[Recorded]) -> float:
    """Seconds between two tokens, for responses without a recorded length."""
    found = [
        (row.total_s - row.ttft_s) / (row.output_tokens - 1)
        for row in rows
        if row.ttft_s is not None and row.output_tokens and row.output_tokens > 1 and row.total_s > row.ttft_s
    ]
    return statistics.median(found) if found else 0.02
