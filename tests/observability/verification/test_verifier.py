"""A router, an engine that the test plays, and what the verifier makes of them."""

import logging
from collections.abc import Sequence

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.decision import Decision, Prompt
from gateway.core.engine import EngineMetrics
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.multimodal import BEFORE_MEDIA, Links
from gateway.core.usage import Usage, _Details
from gateway.core.worker import WorkerId
from gateway.index.memory import MemoryIndex
from gateway.observability.verification.accuracy import LEAST, MIN_CREDITED, WINDOW
from gateway.observability.verification.causes import Cause
from gateway.observability.verification.token_check import MAX_RUNS, SETTLE_S
from gateway.observability.verification.verifier import MAX_OPEN, SAMPLE, Verifier, Watched
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.router import Router
from tests.support.fakes import BLOCK_SIZE, Known, worker

W = WorkerId("w:1")


class World:
    """A fleet of one worker; prompts and stored blocks are given as token ids."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet, self.known = Fleet(), Known("w:1")
        self.index: MemoryIndex = self.known.index
        self.fleet.add(worker(block_size=BLOCK_SIZE)).stream = StreamState.EXACT
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            assumed=self.known.assumed,
            policy=PrefixOverlap(),
            tokenize=lambda r: Prompt(tuple(tokens_of(ids) for ids in _lists(r.fields["prompt"])), "ids"),
            clock=lambda: self.now,
        )
        self.differing: dict[WorkerId, bool] = {}
        self.verifier = Verifier(self.fleet, self.index, lambda: self.now, self.differing.__setitem__)
        self.router.observers.decided.append(self.verifier.decided)
        self.router.observers.answered.append(self.verifier.answered)
        self.num_names = 0

    def decide(self, ids: object) -> Decision:
        return self.router.decide(make_request("/v1/completions", {"model": "m", "prompt": ids}))

    def answer(self, decision: Decision, cached: int | None, num_tokens: int | None = None) -> None:
        num_tokens = decision.num_tokens if num_tokens is None else num_tokens
        details = None if cached is None else _Details(cached)
        self.router.finish(decision, Usage(num_tokens, 1, details))

    def ask(self, ids: object, cached: int | None, num_tokens: int | None = None) -> Decision:
        decision = self.decide(ids)
        self.answer(decision, cached, num_tokens)
        return decision

    def store(self, ids: Sequence[int]) -> list[int]:
        """A prompt's blocks as one run; their engine hashes."""
        num = len(ids) // BLOCK_SIZE
        names = list(range(self.num_names, self.num_names + num))
        self.num_names += num
        event = BlocksStored(names, None, tokens_of(ids[: num * BLOCK_SIZE]), BLOCK_SIZE)
        self.index.apply(W, event)
        self.verifier.heard(W, event)
        return names

    def settle(self) -> None:
        """Both looks at all samples."""
        for _ in range(2):
            self.verifier.scraped(W, None)
            self.now += SETTLE_S
        self.verifier.scraped(W, None)

    @property
    def watched(self) -> Watched:
        found = self.verifier.find(W)
        assert found is not None
        return found

    def causes(self) -> dict[Cause, int]:
        return dict(self.watched.causes)


def _lists(prompt: object) -> list[list[int]]:
    assert isinstance(prompt, list)
    return prompt if isinstance(prompt[0], list) else [prompt]


def ids(seed: int = 0, num: int = 18) -> list[int]:
    return list(range(seed * 1000, seed * 1000 + num))


# why -------------------------------------------------------------------------------------------


def test_right_predictions_are_exact() -> None:
    world = World()
    world.store(ids())
    assert world.ask(ids(), 16).overlap_tokens == 16
    assert world.ask(ids(1), 0).overlap_tokens == 0
    exactness = world.watched.exactness
    assert (exactness.num_compared, exactness.share_right) == (2, 1.0)
    assert not world.verifier.in_doubt(W)
    assert world.causes() == {}


def test_evicted_between_decision_and_run() -> None:
    world = World()
    names = world.store(ids())
    decision = world.decide(ids())
    world.index.apply(W, BlocksRemoved(names[2:]))
    world.answer(decision, 8)
    assert world.causes() == {Cause.EVICTED: 1}
    (wrong,) = world.watched.wrong
    assert (wrong.decision, wrong.predicted, wrong.cached) == (decision.id, 16, 8)
    assert world.verifier.in_doubt(W)


def test_reported_blocks_that_were_not_removed_and_are_not_cached() -> None:
    world = World()
    world.store(ids())
    world.ask(ids(), 0)
    assert world.causes() == {Cause.UNKNOWN: 1}


def test_booked_but_never_stored() -> None:
    world = World()
    under_way = world.decide(ids())
    follower = world.decide(ids())
    assert follower.overlap_tokens == 16
    world.answer(follower, 0)
    world.answer(under_way, 0)
    assert world.causes() == {Cause.NEVER_STORED: 1}


def test_stored_while_the_request_was_on_its_way() -> None:
    world = World()
    decision = world.decide(ids())
    world.store(ids())  # another gateway's request was faster
    world.answer(decision, 16)
    assert world.causes() == {Cause.REPORTED_LATER: 1}


def test_cached_but_not_reported() -> None:
    world = World()
    world.ask(ids(), 16)
    assert world.causes() == {Cause.NOT_REPORTED: 1}


def test_another_number_of_tokens_explains_it() -> None:
    world = World()
    world.ask(ids(), 16, num_tokens=19)
    assert world.causes() == {Cause.TOKENS_DIFFER: 1}


def test_answers_without_cached_tokens_are_not_compared() -> None:
    world = World()
    world.ask(ids(), None)
    world.ask([ids(), ids(1)], 0)  # engines report the last prompt only
    assert world.watched.exactness.num_compared == 0
    assert world.watched.tokens.counts.num == 1


def test_prompts_with_images_are_not_compared() -> None:
    """Only what lies before the first is known: the engine counts more, and may have had more."""
    world = World()
    before = Prompt((tokens_of(ids()),), BEFORE_MEDIA, None, Links([BlockHash(1)], [576]))
    for _ in range(5):
        request = make_request("/v1/chat/completions", {"model": "m", "messages": []})
        world.answer(world.router.decide(request, prompt=before), 608, num_tokens=620)
    assert world.verifier.find(W) is None
    assert not world.verifier.in_doubt(W)


def test_a_process_that_is_no_more_is_not_judged() -> None:
    world = World()
    decision = world.decide(ids())
    world.fleet.add(worker(block_size=BLOCK_SIZE))
    world.answer(decision, 16)
    assert world.watched.exactness.num_compared == 0
    world.ask(ids(), 0)
    assert world.watched.exactness.num_compared == 1
    world.fleet.drop(W)
    assert list(world.verifier.watched()) == []


def test_decisions_without_reported_usage_are_dropped() -> None:
    world = World()
    first = world.decide(ids())
    for _ in range(MAX_OPEN):
        world.decide(ids())
    world.answer(first, 0)
    assert world.watched.exactness.num_compared == 0
    assert f"{MAX_OPEN} open" in repr(world.verifier)


# trust -----------------------------------------------------------------------------------------


def test_a_worker_that_is_often_wrong_is_believed_less_and_then_more_again() -> None:
    world = World()
    world.store(ids())
    member = world.fleet.get(W)
    assert member is not None
    for _ in range(MIN_CREDITED - 1):
        world.ask(ids(), 0)
    assert member.confidence == 1.0
    world.ask(ids(), 0)
    assert member.confidence == LEAST
    decision = world.decide(ids())
    assert (decision.overlap_tokens, decision.candidates[0].uncached_tokens) == (16, 17)
    for _ in range(4 * WINDOW):
        world.ask(ids(), 16)
    assert member.confidence == 1.0


def test_an_idle_worker_regains_confidence_with_time() -> None:
    world = World()
    world.store(ids())
    for _ in range(MIN_CREDITED):
        world.ask(ids(), 0)
    member = world.fleet.get(W)
    assert member is not None
    world.verifier.scraped(W, None)  # something was compared since the one before
    assert member.confidence == LEAST
    for _ in range(4 * WINDOW):
        world.verifier.scraped(W, None)
    assert member.confidence == 1.0


# tokens ----------------------------------------------------------------------------------------


def test_another_count_is_seen_in_three_answers(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.INFO, "kvgate.verify"):
        for i in range(5):
            world.ask(ids(i), 0, num_tokens=19)
            assert world.watched.tokens.is_raised is (i >= 2)
            assert world.differing == ({W: True} if i >= 2 else {})
        for i in range(400):
            world.ask(ids(i), None)
    assert not world.watched.tokens.is_raised
    assert world.differing == {W: False}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    difference = world.watched.tokens.difference
    assert difference is not None
    assert (difference.num_ours, difference.num_engines, difference.position) == (18, 19, None)


def test_a_restarted_worker_does_not_inherit_a_token_difference() -> None:
    world = World()
    for i in range(3):
        world.ask(ids(i), 0, num_tokens=19)
    assert world.differing == {W: True}
    world.fleet.add(worker(block_size=BLOCK_SIZE))
    world.ask(ids(), 0)
    assert world.differing == {W: False}


def test_as_many_tokens_that_are_others_are_seen_by_events() -> None:
    world = World()
    for i in range(4):
        decision = world.decide(ids(i))
        world.store([*ids(i, 9), 7, *ids(i)[10:]])
        world.answer(decision, 0)
        world.now += SETTLE_S
    world.settle()
    assert world.watched.tokens.is_raised
    difference = world.watched.tokens.difference
    assert difference is not None
    assert (difference.decision, difference.position) == (decision.id, 9)
    assert (difference.ours[3], difference.engines[3]) == (3009, 7)
    assert world.ask(ids(9), 16).overlap_tokens == 0
    assert world.causes() == {Cause.TOKENS_DIFFER: 1}


def test_events_that_were_not_read_yet_are_no_other_tokens() -> None:
    """Our loop stood still: an answer has ended, and is looked at before the events that came before it."""
    world = World()
    for i in range(4):
        decision = world.decide(ids(i))
        world.store(ids(i + 100))  # another prompt's
        world.answer(decision, 0)
        world.now += 4 * SETTLE_S
        world.verifier.scraped(W, None)
        world.store(ids(i))
        world.now += SETTLE_S
        world.verifier.scraped(W, None)
    stored = world.watched.tokens.stored
    assert (stored.num, stored.num_differing, world.watched.tokens.difference) == (4, 0, None)


def test_where_looks_are_frequent_the_first_one_decides() -> None:
    """Evictions from a full cache meanwhile would make the second check inconclusive."""
    world = World()
    decision = world.decide(ids())
    world.store([*ids(0, 9), 7, *ids()[10:]])
    world.answer(decision, 0)
    for _ in range(26):
        world.now += SETTLE_S / 25
        world.verifier.scraped(W, None)
    difference = world.watched.tokens.difference
    assert difference is not None and difference.position == 9


def test_a_position_found_by_the_first_check_is_reported_after_the_runs_are_dropped() -> None:
    world = World()
    decision = world.decide(ids())
    world.store([*ids(0, 9), 7, *ids()[10:]])
    world.answer(decision, 0)
    world.now += SETTLE_S
    world.verifier.scraped(W, None)
    for i in range(MAX_RUNS):
        world.store(ids(i + 100))
    world.now += SETTLE_S
    world.verifier.scraped(W, None)
    difference = world.watched.tokens.difference
    assert difference is not None and difference.position == 9


def test_a_worker_that_stores_our_tokens_is_looked_at_now_and_then() -> None:
    world = World()
    num = 40 * SAMPLE
    for i in range(num):
        decision = world.decide(ids(i))
        world.store(ids(i))
        world.answer(decision, 0)
        world.now += SETTLE_S
    stored = world.watched.tokens.stored
    assert (stored.num_differing, world.watched.tokens.is_raised) == (0, False)
    assert num // SAMPLE <= stored.num < num // SAMPLE + 2 * SAMPLE


@pytest.mark.parametrize("state", [None, StreamState.BLIND, StreamState.CATCHING_UP])
def test_nothing_is_concluded_from_events_that_are_not_complete(state: StreamState | None) -> None:
    world = World()
    member = world.fleet.get(W)
    assert member is not None
    member.stream = state
    for i in range(5):
        decision = world.decide(ids(i))
        world.store([7, *ids(i)])
        world.answer(decision, 0)
        world.now += SETTLE_S
    assert world.watched.tokens.stored.num == 0


def test_samples_whose_answers_never_come_make_room() -> None:
    world = World()
    for i in range(2000):
        world.decide(ids(i))
    assert len(world.watched.tokens.samples) == 4
    newest = max(int(sample.tokens[0]) for sample in world.watched.tokens.samples.values())
    assert newest > 1000 * 1000


# the engine's counters -------------------------------------------------------------------------


def test_engine_counters_are_shown_for_the_fleets_workers() -> None:
    world = World()
    assert list(world.verifier.counters()) == []
    for total in (100, 130):
        world.verifier.scraped(W, EngineMetrics(prefix_cache_queries_total=total, prefix_cache_hits_total=50))
    ((name, counters),) = world.verifier.counters()
    assert (name, counters.prompt_tokens, counters.cached_tokens) == (W, 30, 0)
    world.fleet.drop(W)
    assert list(world.verifier.counters()) == []
