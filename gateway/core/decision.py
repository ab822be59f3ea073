"""Inputs and results of a policy: plain frozen values.

msgspec structs, not dataclasses: one is made per candidate and request, at a tenth of the time.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.blocks import BlockHash, Tokens, count_tokens
from gateway.core.multimodal import Links
from gateway.core.rendering import Rendering
from gateway.core.requests.request import InferenceRequest
from gateway.core.speed import TYPICAL, Speed
from gateway.core.token_runs import TokenRun
from gateway.core.worker import Worker, WorkerId


class Prompt(msgspec.Struct, frozen=True):
    """Token ids of a request's prompts: one, or several for a batch. `source` names the tokenizer.

    A chat that continues a known one begins with the tokens of `run`. With `links`, the tokens end at the
    first image, and the prompt goes on after them. `others` are the prompts of renderings that make other
    tokens of the request, where engines of several renderings serve its model."""

    tokens: Sequence[Tokens] = ()
    source: str = "none"
    run: TokenRun | None = None
    links: Links | None = None
    others: Mapping[Rendering, "Prompt"] = {}

    @property
    def num_tokens(self) -> int:
        return count_tokens(self.tokens)

    def rendered_by(self, rendering: Rendering) -> "Prompt":
        """The prompt as engines of a rendering make it."""
        return self.others.get(rendering, self) if self.others else self


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A worker that could take the request now, with the numbers that a policy sees.

    overlap_tokens    leading prompt tokens in its cache (or booked there), capped as the engine
                      caps a hit: the last token is always computed
    uncached_tokens   prompt tokens it will have to compute, with `confidence` applied
    booked_tokens     uncached prompt tokens of requests sent there that have not produced a token
    num_in_flight     requests sent there and not finished, as kvgate counts
    num_waiting, kv_usage   as the engine last reported
    offloaded         tokens of the overlap that are not on its GPU, by the media where they lie
    assumed_tokens    about how many tokens after the first image were sent there before; not in the overlap
    is_exact          its event stream is EXACT
    confidence        the share of predicted overlaps that it really had lately
    speed             the learnt speed model
    stays_s           lifetime of an unused block in its cache; infinite where none is evicted
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
    speed: Speed = TYPICAL
    stays_s: float = math.inf

    @property
    def id(self) -> WorkerId:
        return self.worker.id


class Query(msgspec.Struct, frozen=True, gc=False):
    """The request as a policy sees it.

    num_tokens    0 where the prompt is unknown
    priority      higher goes first; below 0 the request may be shed
    slo_ttft_s    the wanted time to first token
    prefix        a hash, equal for prompts that begin alike; None where the tokens are unknown
    queued_s      seconds in the admission queue
    """

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
    """A policy's answer: the index of the chosen candidate, and each candidate's cost or score in `terms`.

    `ttft_s` is the predicted time to first token there, for a policy that predicts. `policy` names the policy
    that chose, where another one was asked."""

    index: int
    reason: str
    terms: tuple[float, ...] = ()
    ttft_s: float | None = None
    policy: str = ""


class PrefillChoice(msgspec.Struct, frozen=True, gc=False):
    """The decision whether another worker computes the prompt: `prefill` is one of `candidates`, or None.

    `direct_s` and `split_s` are the predicted seconds to first token without and with it; None where that way
    was impossible."""

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

    `candidates` are the numbers at that moment; `terms[i]` is the cost or score of candidate i.
    `confirmed_tokens` are leading tokens that events reported: the rest of `overlap_tokens` is booked or
    assumed. `split` is None where no worker computes prompts for others. `query` is the policy's input,
    `ttft_s` its prediction, if it makes one.
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
    confirmed_tokens: int = 0
    split: PrefillChoice | None = None
    query: Query | None = None
    ttft_s: float | None = None

    @property
    def prefill(self) -> Worker | None:
        """The prefill worker, where another one than `worker` computes the prompt."""
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
