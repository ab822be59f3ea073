"""Context limit of a fleet in virtual time: requests that are longer than a worker's cache.

vLLM does not start with a context (`--max-model-len`) that its cache cannot hold. It refuses a prompt that
leaves no room for an answer (400), and ends an answer where the context is full.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.replay.job import ReplayJob


@dataclass(frozen=True, slots=True)
class Admitted:
    """Requests that the engines accept, in order; `num_truncated` of them end at the context limit."""

    jobs: list[ReplayJob]
    num_rejected: int = 0
    num_truncated: int = 0


def admitted(jobs: Iterable[ReplayJob], context_tokens: int) -> Admitted:
    """Refuse prompts and cut answers that exceed `context_tokens` of prompt and answer together."""
    kept: list[ReplayJob] = []
    num_rejected = num_truncated = 0
    for job in jobs:
        room = context_tokens - job.num_tokens
        if room < 1:
            num_rejected += 1
            continue
        if job.num_output > room:
            num_truncated += 1
            job = replace(job, num_output=room, output=job.output[:room])
        kept.append(job)
    return Admitted(kept, num_rejected, num_truncated)
