"""Inputs and results of a policy: plain frozen values."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, final

from mypy_extensions import mypyc_attr

from gateway.core.blocks import BlockHash, Tokens, count_tokens
from gateway.core.multimodal import Links
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.speed import TYPICAL, Speed
from gateway.core.token_runs import TokenRun
from gateway.core.value import Value
from gateway.core.worker import Worker, WorkerId

ENDLESS: Final = math.inf
"""Lifetime of an unused block in a cache that evicts none, in seconds."""


@final
@mypyc_attr(acyclic=True)
class Prompt(Value):
    """Token ids of a request's prompts: one, or several for a batch. `source` names the tokenizer.

    A chat that continues a known one begins with the tokens of `run`. With `links`, the tokens end at the
    first image, and the prompt goes on after them. `others` are the prompts of renderings that make other
    tokens of the request, where engines of several renderings serve its model."""

    __match_args__ = ("tokens", "source", "run", "links", "others")
    __slots__ = __match_args__

    def __init__(
        self,
        tokens: Sequence[Tokens] = (),
        source: str = "none",
        run: TokenRun | None = None,
        links: Links | None = None,
        others: Mapping[Rendering, "Prompt"] = {},
    ) -> None:
        self.tokens: Final = tokens
        self.source: Final = source
        self.run: Final = run
        self.links: Final = links
        self.others: Final = others

    @property
    def num_tokens(self) -> int:
        return count_tokens(self.tokens)

    def rendered_by(self, rendering: Rendering) -> "Prompt":
        """The prompt as engines of a rendering make it."""
        return self.others.get(rendering, self) if self.others else self


@final
@mypyc_attr(acyclic=True)
class Candidate(Value):
    """A worker that could take the request now, with the numbers that a policy sees.

    overlap_tokens    leading prompt tokens in its cache (or booked there), capped as the engine
                      caps a hit: the last token is always computed
    uncached_tokens   prompt tokens it will have to compute, with `confidence` applied
    booked_tokens     uncached prompt tokens of requests without a first token, still to be computed there
    num_in_flight     requests sent there and not finished, as kvgate counts
    num_waiting, kv_usage   as the engine last reported; 0 where their names are in `unreported`
    offloaded         tokens of the overlap that are not on its GPU, by the media where they lie
    assumed_tokens    about how many tokens after the first image were sent there before; not in the overlap
    is_exact          its event stream is EXACT
    confidence        the share of predicted overlaps that it really had lately
    speed             the learnt speed model
    stays_s           lifetime of an unused block in its cache; infinite where none is evicted
    """

    __match_args__ = (
        "worker",
        "overlap_tokens",
        "uncached_tokens",
        "booked_tokens",
        "num_in_flight",
        "num_waiting",
        "kv_usage",
        "is_exact",
        "confidence",
        "offloaded",
        "assumed_tokens",
        "speed",
        "stays_s",
        "unreported",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        worker: Worker,
        overlap_tokens: int,
        uncached_tokens: int,
        booked_tokens: int,
        num_in_flight: int,
        num_waiting: int = 0,
        kv_usage: float = 0.0,
        is_exact: bool = False,
        confidence: float = 1.0,
        offloaded: Mapping[tuple[str, ...], int] = {},
        assumed_tokens: int = 0,
        speed: Speed = TYPICAL,
        stays_s: float = ENDLESS,
        unreported: frozenset[str] = frozenset(),
    ) -> None:
        self.worker: Final = worker
        self.overlap_tokens: Final = overlap_tokens
        self.uncached_tokens: Final = uncached_tokens
        self.booked_tokens: Final = booked_tokens
        self.num_in_flight: Final = num_in_flight
        self.num_waiting: Final = num_waiting
        self.kv_usage: Final = kv_usage
        self.is_exact: Final = is_exact
        self.confidence: Final = confidence
        self.offloaded: Final = offloaded
        self.assumed_tokens: Final = assumed_tokens
        self.speed: Final = speed
        self.stays_s: Final = stays_s
        self.unreported: Final = unreported

    @property
    def id(self) -> WorkerId:
        return self.worker.id


@mypyc_attr(acyclic=True, allow_interpreted_subclasses=True)
class Query(Value):
    """The request as a policy sees it.

    num_tokens    0 where the prompt is unknown
    priority      higher goes first; below 0 the request may be shed
    slo_ttft_s    the wanted time to first token
    prefix        a hash, equal for prompts that begin alike; None where the tokens are unknown
    queued_s      seconds in the admission queue
    cached        a hash of the longest prefix of the prompt that any worker has cached or is computing, None
                  without one
    cached_tokens, computing_tokens   of that prefix, and how many of those no worker has reported yet
    now_s         monotonic seconds at the decision
    predicts      predicted TTFTs were about right lately
    """

    __match_args__ = (
        "model",
        "num_tokens",
        "session",
        "tenant",
        "adapter",
        "priority",
        "slo_ttft_s",
        "prefix",
        "queued_s",
        "cached",
        "cached_tokens",
        "computing_tokens",
        "now_s",
        "predicts",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        model: str,
        num_tokens: int,
        session: str | None = None,
        tenant: str | None = None,
        adapter: str | None = None,
        priority: int = 0,
        slo_ttft_s: float | None = None,
        prefix: int | None = None,
        queued_s: float = 0.0,
        cached: BlockHash | None = None,
        cached_tokens: int = 0,
        computing_tokens: int = 0,
        now_s: float = 0.0,
        predicts: bool = True,
    ) -> None:
        self.model: Final = model
        self.num_tokens: Final = num_tokens
        self.session: Final = session
        self.tenant: Final = tenant
        self.adapter: Final = adapter
        self.priority: Final = priority
        self.slo_ttft_s: Final = slo_ttft_s
        self.prefix: Final = prefix
        self.queued_s: Final = queued_s
        self.cached: Final = cached
        self.cached_tokens: Final = cached_tokens
        self.computing_tokens: Final = computing_tokens
        self.now_s: Final = now_s
        self.predicts: Final = predicts


@final
@mypyc_attr(acyclic=True)
class Choice(Value):
    """A policy's answer: the index of the chosen candidate, and each candidate's cost or score in `terms`.

    `ttft_s` is the predicted time to first token there, for a policy that predicts. `policy` names the policy
    that chose, where another one was asked."""

    __match_args__ = ("index", "reason", "terms", "ttft_s", "policy")
    __slots__ = __match_args__

    def __init__(
        self,
        index: int,
        reason: str,
        terms: tuple[float, ...] = (),
        ttft_s: float | None = None,
        policy: str = "",
    ) -> None:
        self.index: Final = index
        self.reason: Final = reason
        self.terms: Final = terms
        self.ttft_s: Final = ttft_s
        self.policy: Final = policy


@final
@mypyc_attr(acyclic=True)
class PrefillChoice(Value):
    """The decision whether another worker computes the prompt: `prefill` is one of `candidates`, or None.

    `direct_s` and `split_s` are the predicted seconds to first token without and with it; None where that way
    was impossible."""

    __match_args__ = ("reason", "prefill", "direct_s", "split_s", "candidates")
    __slots__ = __match_args__

    def __init__(
        self,
        reason: str,
        prefill: Candidate | None = None,
        direct_s: float | None = None,
        split_s: float | None = None,
        candidates: tuple[Candidate, ...] = (),
    ) -> None:
        self.reason: Final = reason
        self.prefill: Final = prefill
        self.direct_s: Final = direct_s
        self.split_s: Final = split_s
        self.candidates: Final = candidates


@final
@mypyc_attr(acyclic=True)
class Timings(Value):
    """Seconds that the stages of a decision took."""

    __match_args__ = ("prompt", "hash", "index", "policy")
    __slots__ = __match_args__

    def __init__(
        self, prompt: float = 0.0, hash: float = 0.0, index: float = 0.0, policy: float = 0.0
    ) -> None:
        self.prompt: Final = prompt
        self.hash: Final = hash
        self.index: Final = index
        self.policy: Final = policy


UNTIMED: Final = Timings()


@final
@mypyc_attr(acyclic=True)
class Decision(Value):
    """The worker chosen for one request, and why.

    `candidates` are the numbers at that moment; `terms[i]` is the cost or score of candidate i.
    `confirmed_tokens` are leading tokens that events reported: the rest of `overlap_tokens` is booked or
    assumed. `split` is None where no worker computes prompts for others. `query` is the policy's input,
    `ttft_s` its prediction, if it makes one.
    """

    __match_args__ = (
        "id",
        "model",
        "policy",
        "worker",
        "num_tokens",
        "overlap_tokens",
        "reason",
        "candidates",
        "terms",
        "attempt",
        "prompt_from",
        "timings_s",
        "confirmed_tokens",
        "split",
        "query",
        "ttft_s",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        id: str,
        model: str,
        policy: str,
        worker: Worker,
        num_tokens: int,
        overlap_tokens: int,
        reason: str,
        candidates: tuple[Candidate, ...],
        terms: tuple[float, ...] = (),
        attempt: int = 1,
        prompt_from: str = "none",
        timings_s: Timings = UNTIMED,
        confirmed_tokens: int = 0,
        split: PrefillChoice | None = None,
        query: Query | None = None,
        ttft_s: float | None = None,
    ) -> None:
        self.id: Final = id
        self.model: Final = model
        self.policy: Final = policy
        self.worker: Final = worker
        self.num_tokens: Final = num_tokens
        self.overlap_tokens: Final = overlap_tokens
        self.reason: Final = reason
        self.candidates: Final = candidates
        self.terms: Final = terms
        self.attempt: Final = attempt
        self.prompt_from: Final = prompt_from
        self.timings_s: Final = timings_s
        self.confirmed_tokens: Final = confirmed_tokens
        self.split: Final = split
        self.query: Final = query
        self.ttft_s: Final = ttft_s

    @property
    def prefill(self) -> Worker | None:
        """The prefill worker, where another one than `worker` computes the prompt."""
        return self.split.prefill.worker if self.split and self.split.prefill else None

    @property
    def uncached_tokens(self) -> int:
        return self.num_tokens - self.overlap_tokens

    @property
    def is_exact(self) -> bool:
        """True if KV events reported everything that the chosen worker had cached."""
        worker = self.worker.id
        return any(each.is_exact for each in self.candidates if each.worker.id == worker)


@final
@mypyc_attr(acyclic=True)
class Decided(Value):
    """A decision with its inputs, as observers get it: `blocks` are the hashes of each prompt's full blocks,
    empty where the prompt's tokens are not known."""

    __match_args__ = ("decision", "prompt", "blocks", "request")
    __slots__ = __match_args__

    def __init__(
        self,
        decision: Decision,
        prompt: Prompt,
        blocks: Sequence[Sequence[BlockHash]],
        request: InferenceRequest,
    ) -> None:
        self.decision: Final = decision
        self.prompt: Final = prompt
        self.blocks: Final = blocks
        self.request: Final = request
