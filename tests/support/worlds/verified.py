"""A router, an engine that the test plays, and a verifier that observes both."""

from collections.abc import Sequence

from gateway import request as make_request
from gateway.core.blocks import tokens_of
from gateway.core.decision import Decision, Prompt
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.observability.verification.misprediction import ErrorCause
from gateway.observability.verification.salt_alarm import SaltAlarm
from gateway.observability.verification.verifier import Verifier, WorkerVerification
from gateway.parity.live_check import SETTLE_S
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.router import Router
from tests.support.fakes import BLOCK_SIZE, Known, worker

W = WorkerId("w:1")


class VerifiedWorld:
    """A fleet of one worker with an event stream; prompts and stored blocks are given as token ids."""

    def __init__(self, stream: StreamState | None = StreamState.EXACT) -> None:
        self.now = 0.0
        self.fleet, self.known = Fleet(), Known("w:1")
        self.index: MemoryIndex = self.known.index
        self.fleet.add(worker(block_size=BLOCK_SIZE)).stream = stream
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.known.assumed,
            policy=PrefixOverlap(),
            tokenize=lambda r: Prompt(tuple(tokens_of(ids) for ids in _lists(r.fields["prompt"])), "ids"),
            clock=lambda: self.now,
        )
        self.differing: dict[WorkerId, bool] = {}
        self.suspected: list[tuple[str, int]] = []
        alarm = SaltAlarm(lambda url, rank: self.suspected.append((url, rank)))
        self.verifier = Verifier(self.fleet, self.index, lambda: self.now, self.differing.__setitem__, alarm)
        self.router.observers.decided.append(self.verifier.decided)
        self.router.observers.answered.append(self.verifier.answered)
        self.num_names = 0

    def decide(self, ids: object, **fields: object) -> Decision:
        return self.router.decide(make_request("/v1/completions", {"model": "m", "prompt": ids, **fields}))

    def answer(self, decision: Decision, cached: int | None, num_tokens: int | None = None) -> None:
        num_tokens = decision.num_tokens if num_tokens is None else num_tokens
        self.router.finish(decision, Usage(num_tokens, 1, cached))

    def ask(
        self, ids: object, cached: int | None, num_tokens: int | None = None, **fields: object
    ) -> Decision:
        decision = self.decide(ids, **fields)
        self.answer(decision, cached, num_tokens)
        return decision

    def store(self, ids: Sequence[int], salt: str | None = None) -> list[int]:
        """Store a prompt's blocks as one run; returns their engine hashes."""
        num = len(ids) // BLOCK_SIZE
        names = list(range(self.num_names, self.num_names + num))
        self.num_names += num
        keys = [[salt], *[None] * (num - 1)] if salt else None
        event = BlocksStored(names, None, tokens_of(ids[: num * BLOCK_SIZE]), BLOCK_SIZE, keys)
        self.index.apply(W, event)
        self.verifier.heard(W, event)
        return names

    def settle(self) -> None:
        """Run both checks of all samples."""
        for _ in range(2):
            self.verifier.scraped(W, None)
            self.now += SETTLE_S
        self.verifier.scraped(W, None)

    @property
    def watched(self) -> WorkerVerification:
        found = self.verifier.find(W)
        assert found is not None
        return found

    def causes(self) -> dict[ErrorCause, int]:
        return dict(self.watched.causes)


def _lists(prompt: object) -> list[list[int]]:
    assert isinstance(prompt, list)
    return prompt if isinstance(prompt[0], list) else [prompt]


def ids(seed: int = 0, num: int = 18) -> list[int]:
    return list(range(seed * 1000, seed * 1000 + num))
