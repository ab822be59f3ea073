"""The verifier, with a router and an engine that the test plays."""

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.decision import Prompt
from gateway.core.engine import EngineMetrics
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.core.multimodal import BEFORE_MEDIA, Links
from gateway.core.outcome import Outcome
from gateway.observability.verification.accuracy import LEAST, MIN_CREDITED, WINDOW
from gateway.observability.verification.misprediction import ErrorCause
from gateway.observability.verification.verifier import MAX_OPEN
from tests.support.fakes import BLOCK_SIZE, worker
from tests.support.worlds.verified import VerifiedWorld, W, ids

# causes ----------------------------------------------------------------------------------------


def test_right_predictions_are_exact() -> None:
    world = VerifiedWorld()
    world.store(ids())
    assert world.ask(ids(), 16).overlap_tokens == 16
    assert world.ask(ids(1), 0).overlap_tokens == 0
    exactness = world.watched.exactness
    assert (exactness.num_compared, exactness.exact_share) == (2, 1.0)
    assert not world.verifier.in_doubt(W)
    assert world.causes() == {}


def test_blocks_evicted_between_decision_and_run_are_a_cause() -> None:
    world = VerifiedWorld()
    names = world.store(ids())
    decision = world.decide(ids())
    world.index.apply(W, BlocksRemoved(names[2:]))
    world.answer(decision, 8)
    assert world.causes() == {ErrorCause.EVICTED: 1}
    (wrong,) = world.watched.wrong
    assert (wrong.decision, wrong.predicted, wrong.cached) == (decision.id, 16, 8)
    assert world.verifier.in_doubt(W)


def test_reported_blocks_that_were_not_cached_are_a_cause() -> None:
    world = VerifiedWorld()
    world.store(ids())
    world.ask(ids(), 0)
    assert world.causes() == {ErrorCause.UNKNOWN: 1}


def test_booked_blocks_that_were_never_stored_are_a_cause() -> None:
    world = VerifiedWorld()
    under_way = world.decide(ids())
    follower = world.decide(ids())
    assert follower.overlap_tokens == 16
    world.answer(follower, 0)
    world.answer(under_way, 0)
    assert world.causes() == {ErrorCause.NEVER_STORED: 1}


def test_blocks_stored_while_the_request_was_on_its_way_are_a_cause() -> None:
    world = VerifiedWorld()
    decision = world.decide(ids())
    world.store(ids())  # another gateway's request was faster
    world.answer(decision, 16)
    assert world.causes() == {ErrorCause.REPORTED_LATER: 1}


def test_cached_blocks_that_were_not_reported_are_a_cause() -> None:
    world = VerifiedWorld()
    world.ask(ids(), 16)
    assert world.causes() == {ErrorCause.NOT_REPORTED: 1}


def test_another_number_of_tokens_is_a_cause() -> None:
    world = VerifiedWorld()
    world.ask(ids(), 16, num_tokens=19)
    assert world.causes() == {ErrorCause.TOKENS_DIFFER: 1}


def test_answers_without_cached_tokens_are_not_compared() -> None:
    world = VerifiedWorld()
    world.ask(ids(), None)
    world.ask([ids(), ids(1)], 0)  # engines report the last prompt only
    assert world.watched.exactness.num_compared == 0
    assert world.watched.tokens.counts.num == 1


def test_prompts_with_images_are_not_compared() -> None:
    """Only tokens before the first image are known: the engine counts more, and may have had more."""
    world = VerifiedWorld()
    before = Prompt((tokens_of(ids()),), BEFORE_MEDIA, None, Links([BlockHash(1)], [576]))
    for _ in range(5):
        request = make_request("/v1/chat/completions", {"model": "m", "messages": []})
        world.answer(world.router.decide(request, prompt=before), 608, num_tokens=620)
    assert world.verifier.find(W) is None
    assert not world.verifier.in_doubt(W)


def test_a_restarted_worker_is_not_compared() -> None:
    world = VerifiedWorld()
    decision = world.decide(ids())
    world.fleet.add(worker(block_size=BLOCK_SIZE))
    world.answer(decision, 16)
    assert world.watched.exactness.num_compared == 0
    world.ask(ids(), 0)
    assert world.watched.exactness.num_compared == 1
    world.fleet.drop(W)
    assert list(world.verifier.watched()) == []


def test_decisions_without_reported_usage_are_dropped() -> None:
    world = VerifiedWorld()
    first = world.decide(ids())
    for _ in range(MAX_OPEN):
        world.decide(ids())
    world.answer(first, 0)
    assert world.watched.exactness.num_compared == 0
    assert f"{MAX_OPEN} open" in repr(world.verifier)


def test_a_request_that_has_ended_is_not_kept() -> None:
    world = VerifiedWorld()
    decision = world.decide(ids())
    world.verifier.finished(decision, Outcome("client gone", 499, None, None))
    assert "0 open" in repr(world.verifier)
    world.answer(decision, 0)
    assert world.watched.exactness.num_compared == 0


# without exact events --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, StreamState.BLIND])
@pytest.mark.parametrize("answer_len", [5, 64])
def test_conversations_at_a_worker_without_exact_events_are_not_wrong(
    stream: StreamState | None, answer_len: int
) -> None:
    """Each turn repeats the answer before, which the engine has cached and kvgate never sent."""
    world, said = VerifiedWorld(stream), ids()
    cached = 0
    for turn in range(1, 9):
        decision = world.decide(said)
        assert decision.overlap_tokens <= cached
        world.router.first_token(decision)
        world.answer(decision, cached)
        cached = len(said) + answer_len - 1
        said = said + ids(turn, answer_len) + ids(turn + 100, 30)
    assert world.causes() == {}
    exactness = world.watched.exactness
    assert (exactness.num_compared, exactness.num_unknown) == (1, 7)  # the first found nothing, as predicted
    assert (exactness.exact_share, exactness.confidence) == (1.0, 1.0)
    assert not world.verifier.in_doubt(W)


def test_prompts_counted_otherwise_are_wrong_without_exact_events_too() -> None:
    world = VerifiedWorld(None)
    world.ask(ids(), 16, num_tokens=19)
    assert world.causes() == {ErrorCause.TOKENS_DIFFER: 1}


def test_fewer_cached_tokens_than_predicted_are_wrong_without_exact_events_too() -> None:
    world = VerifiedWorld(None)
    first = world.decide(ids())
    world.router.first_token(first)
    world.answer(first, 0)
    world.ask(ids(), 0)
    assert world.causes() == {ErrorCause.NEVER_STORED: 1}


# confidence ------------------------------------------------------------------------------------


def test_a_worker_that_is_often_wrong_loses_and_regains_confidence() -> None:
    world = VerifiedWorld()
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
    world = VerifiedWorld()
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


# the engine's counters -------------------------------------------------------------------------


def test_engine_counters_are_shown_for_the_fleets_workers() -> None:
    world = VerifiedWorld()
    assert list(world.verifier.counters()) == []
    for total in (100, 130):
        world.verifier.scraped(W, EngineMetrics(prefix_cache_queries_total=total, prefix_cache_hits_total=50))
    ((name, counters),) = world.verifier.counters()
    assert (name, counters.prompt_tokens, counters.cached_tokens) == (W, 30, 0)
    world.fleet.drop(W)
    assert list(world.verifier.counters()) == []
