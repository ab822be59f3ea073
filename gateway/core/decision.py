"""What a policy sees and what it answers: plain frozen values.

msgspec structs, not dataclasses: one is made per candidate and request, at a tenth of the time.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.blocks import BlockHash, Tokens
from gateway.core.multimodal import Links
from gateway.core.requests.request import InferenceRequest
from gateway.core.speed import TYPICAL, Pace
from gateway.core.token_runs import Run
from gateway.core.worker import Worker, WorkerId


class Prompt(msgspec.Struct, frozen=True):
    """A request's prompts as token ids, one or (for batched completions) several; `source` says by whom.
    The one of a chat begins with the tokens of `run`, where it goes on from known ones. With `links`, the
    tokens end at the first image, and there is more behind them."""

    tokens: Sequence[Tokens] = ()
    source: str = "none"
    run: Run | None = None
    links: Links | None = None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One worker that could take the request now.

    overlap_tokens    leading prompt tokens it holds (or is about to hold), capped as the engine
                      caps a hit: the last token is always computed
    uncached_tokens   prompt tokens it will have to compute, by what its word is worth
    booked_tokens     uncached prompt tokens of requests sent there that have not produced a token
    num_in_flight     requests sent there and not finished, counted by us
    num_waiting, kv_usage   as the engine last reported
    offloaded         tokens of the overlap that are not on its GPU, by the media where they lie
    assumed_tokens    about how many behind the first image it was sent before; not part of the overlap
    is_exact          its event stream is EXACT: the overlap is a fact, not a guess
    confidence        the share of such overlaps that it really had lately, 1 unless it is often less
    pace              how fast it works, as learnt
    stays_s           how long a block stays there that nobody asks for; infinite where none is evicted
    """

    worker: Worker
    overlap_tokens: int
    uncached_tokens: int
    booked_tokens: int
    num_in_flight: int
    num_waiting: int = 0
    kv_usage: float = 0.0
    is_exact: bool = False
    confidence: float = 1.0
    offloaded: Mapping[tuple[str, ...], int] = {}
    assumed_tokens: int = 0
    pace: Pace = TYPICAL
    stays_s: float = math.inf

    @property
    def id(self) -> WorkerId:
        return self.worker.id


class Query(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of the request itself. `num_tokens` is 0 where the prompt is unknown; a higher
    `priority` goes first, one below 0 may be shed; `slo_ttft_s` is within what it wants its first token. What
    begins alike has the same `prefix`, a hash; None where the tokens are not known. It has waited here for
    `queued_s`."""

    model: str
    num_tokens: int
    session: str | None = None
    tenant: str | None = None
    adapter: str | None = None
    priority: int = 0
    slo_ttft_s: float | None = None
    prefix: int | None = None
    queued_s: float = 0.0


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A policy's answer: the index of the chosen candidate, and each candidate's cost or score; `ttft_s` is
    the predicted time to first token there, for a policy that predicts. `policy` is who chose, where it is
    not the one that was asked."""

    index: int
    reason: str
    terms: tuple[float, ...] = ()
    ttft_s: float | None = None
    policy: str = ""


class Split(msgspec.Struct, frozen=True, gc=False):
    """Whether another worker computes the prompt, and what was predicted of it: `prefill` is the one of
    `candidates` that does, or None. Seconds until the first token with and without it, None where there was
    no such way."""

    reason: str
    prefill: Candidate | None = None
    direct_s: float | None = None
    split_s: float | None = None
    candidates: tuple[Candidate, ...] = ()


class Timings(msgspec.Struct, frozen=True, gc=False):
    """Seconds that the stages of a decision took."""

    prompt: float = 0.0
    hash: float = 0.0
    index: float = 0.0
    policy: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """The worker chosen for one request, and why.

    `candidates` are the numbers as they were at that moment; `terms[i]` is what the policy made of
    candidate i. `told_tokens` are leading ones that events tell of: what `overlap_tokens` has beyond them
    is booked or assumed. `split` is None where no worker computes prompts for others. `query` is what the
    policy was asked, `ttft_s` what it predicted, if it does.
    """

    id: str
    model: str
    policy: str
    worker: Worker
    num_tokens: int
    overlap_tokens: int
    reason: str
    candidates: tuple[Candidate, ...]
    terms: tuple[float, ...] = ()
    attempt: int = 1
    prompt_from: str = "none"
    timings_s: Timings = Timings()
    told_tokens: int = 0
    split: Split | None = None
    query: Query | None = None
    ttft_s: float | None = None

    @property
    def prefill(self) -> Worker | None:
        """Who computes the prompt, where that is another one than `worker`."""
        return self.split.prefill.worker if self.split and self.split.prefill else None

    @property
    def uncached_tokens(self) -> int:
        return self.num_tokens - self.overlap_tokens


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A decision with its inputs, as observers get it: `blocks` are the hashes of each prompt's full blocks,
    empty where the prompt's tokens are not known."""

    decision: Decision
    prompt: Prompt
    blocks: Sequence[Sequence[BlockHash]]
    request: InferenceRequest
