"""Request in virtual time: decided, computed, answered; the counterpart of `gateway/proxy/exchange.py`, which
uses sockets.

    decide ─► prefill engine ─► transfer ─► decode engine ─► first token … last token
       ▲ a worker went away ─► decide again
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import msgspec

from engines.sim.scheduler import Sequence as EngineSequence
from gateway.core.blocks import Tokens
from gateway.core.decision import Decision, Prompt
from gateway.core.errors import NoWorker
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.replay.clock import Clock
from gateway.replay.engine import VirtualEngine
from gateway.replay.job import ReplayJob
from gateway.replay.profile import Profile
from gateway.requests.parsing import parse_request
from gateway.routing.router import Router

RETRY_S = 1.0
"""Seconds after which a client retries when no worker is up."""


class ExchangeFleet(Protocol):
    """Interface of the fleet to an exchange."""

    clock: Clock
    router: Router
    transfer: TransferSpeed
    may_split: bool
    look: Callable[[ReplayJob, Tokens], None] | None
    engines: dict[WorkerId, VirtualEngine]
    open: "dict[VirtualExchange, None]"

    def began(self, exchange: "VirtualExchange") -> None: ...

    def ended(self, exchange: "VirtualExchange") -> None: ...

    def noise_of(self, profile: Profile) -> float: ...


class VirtualExchange:
    def __init__(self, gateway: ExchangeFleet, job: ReplayJob) -> None:
        self.job = job
        self._gateway = gateway
        self._request = _request_of(job)
        self._began_s = 0.0  # the prefill, or the transfer
        self._ahead_s = 0.0  # until it gets there
        self._at: list[tuple[VirtualEngine, EngineSequence]] = []

    def start(self, exclude: frozenset[WorkerId] = frozenset()) -> None:
        gateway, job = self._gateway, self.job
        tokens, now = job.tokens(), gateway.clock.now
        if gateway.look is not None:
            gateway.look(job, tokens)
        try:
            decision = gateway.router.decide(
                self._request,
                prompt=Prompt((tokens,), "ids"),
                exclude=exclude,
                attempt=job.num_attempts + 1,
                may_split=gateway.may_split,
            )
        except NoWorker:
            gateway.clock.at(now + RETRY_S, self.start)
            return
        job.num_attempts += 1
        job.decision, job.is_split = decision, decision.prefill is not None
        job.worker = (decision.prefill or decision.worker).id
        gateway.began(self)
        self._began_s = now
        if decision.prefill is None:
            profile = gateway.engines[decision.worker.id].profile
            overhead_s = profile.overhead_s + gateway.noise_of(profile)
            if overhead_s > 0.0:
                gateway.clock.at(now + overhead_s, partial(self._arrive, decision, tokens))
            else:
                self._decode(tokens, loads=False)
            return
        engine = gateway.engines[decision.prefill.id]
        handed = partial(self._handed, tokens)
        prefilled = engine.add(tokens, [0], on_last=handed, adapter=self.job.adapter, pins=decision.id)
        self._at.append((engine, prefilled))

    def _arrive(self, decision: Decision, tokens: Tokens) -> None:
        """Arrive at the engine, if it is still to go there."""
        if self.job.decision is decision:
            self._decode(tokens, loads=False)

    def lose(self, worker: WorkerId) -> None:
        """Lose a worker: if the request was there, it is sent again, elsewhere."""
        decision = self.decision
        if worker not in (decision.worker.id, decision.prefill.id if decision.prefill else None):
            return
        for engine, sequence in self._at:
            if engine is not self._gateway.engines[worker]:
                engine.release(sequence) if sequence.is_finished else engine.abort(sequence)
        self._at.clear()
        self._gateway.router.finish(decision)
        del self._gateway.open[self]
        self.job.first_s = self.job.decision = None
        self.start(frozenset({worker}))

    @property
    def decision(self) -> Decision:
        assert self.job.decision is not None
        return self.job.decision

    def _handed(self, tokens: Tokens) -> None:
        """Continue after another worker computed the prompt."""
        gateway, (_, prefilled) = self._gateway, self._at[0]
        gateway.router.prefilled(self.decision, gateway.clock.now - self._began_s)
        self.job.cached_tokens = prefilled.num_cached_tokens or 0
        self._began_s = gateway.clock.now
        self._ahead_s = gateway.router.ahead_s(self.decision.worker.id)
        self._decode(tokens, loads=True)

    def _decode(self, tokens: Tokens, *, loads: bool) -> None:
        engine, output = self._gateway.engines[self.decision.worker.id], self.job.output
        output = output or [0] * self.job.num_output
        added = engine.add(tokens, output, self._first, self._last, adapter=self.job.adapter, loads=loads)
        self._at.append((engine, added))

    def _first(self) -> None:
        """Record the first token, and learn from its TTFT."""
        gateway, job, decision = self._gateway, self.job, self.decision
        job.first_s = gateway.clock.now
        gateway.router.first_token(decision, job.first_s - self._began_s)
        if job.is_split:
            engine, prefilled = self._at.pop(0)
            engine.release(prefilled)
            took_s = gateway.clock.now - self._began_s
            gateway.transfer.transferred(decision.uncached_tokens, took_s, self._ahead_s)
        else:
            job.cached_tokens = self._at[0][1].num_cached_tokens or 0

    def _last(self) -> None:
        """Record the end of the response, and learn from its ITL."""
        gateway, job = self._gateway, self.job
        job.last_s = gateway.clock.now
        gateway.router.finish(self.decision, self._usage(), job.last_s - (job.first_s or 0.0))
        gateway.ended(self)

    def _usage(self) -> Usage:
        """Usage as engines report it at the end of a response."""
        job = self.job
        if not self._gateway.router.observers.answered:
            return Usage(job.num_tokens, job.num_output)
        return Usage(job.num_tokens, job.num_output, job.cached_tokens)


def _request_of(job: ReplayJob) -> InferenceRequest:
    return _request(job.model) if job.session is None else _parsed(job.model, user=job.session)


@cache
def _request(model: str) -> InferenceRequest:
    return _parsed(model)


def _parsed(model: str, **fields: str) -> InferenceRequest:
    body = msgspec.json.encode({"model": model, "prompt": [1], **fields})
    return parse_request("/v1/completions", body)
