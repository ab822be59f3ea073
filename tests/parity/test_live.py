"""Live token parity: counts and stored blocks of an engine that the test plays."""

import logging

import pytest

from gateway.core.event_stream import StreamState
from gateway.observability.verification.misprediction import ErrorCause
from gateway.parity.live import SAMPLE
from gateway.parity.live_check import MAX_RUNS, SETTLE_S
from tests.support.fakes import BLOCK_SIZE, worker
from tests.support.worlds.verified import VerifiedWorld, W, ids


def test_another_number_of_tokens_is_noticed_in_three_answers(caplog: pytest.LogCaptureFixture) -> None:
    world = VerifiedWorld()
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
    world = VerifiedWorld()
    for i in range(3):
        world.ask(ids(i), 0, num_tokens=19)
    assert world.differing == {W: True}
    world.fleet.add(worker(block_size=BLOCK_SIZE))
    world.ask(ids(), 0)
    assert world.differing == {W: False}


def test_equally_many_other_tokens_are_noticed_by_events() -> None:
    world = VerifiedWorld()
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
    assert world.causes() == {ErrorCause.TOKENS_DIFFER: 1}


def test_events_not_read_yet_are_no_difference() -> None:
    """The loop was blocked: an answer has ended, and is checked before the events that came before it."""
    world = VerifiedWorld()
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


def test_under_frequent_checks_the_first_one_decides() -> None:
    """Evictions from a full cache meanwhile would make the second check inconclusive."""
    world = VerifiedWorld()
    decision = world.decide(ids())
    world.store([*ids(0, 9), 7, *ids()[10:]])
    world.answer(decision, 0)
    for _ in range(26):
        world.now += SETTLE_S / 25
        world.verifier.scraped(W, None)
    difference = world.watched.tokens.difference
    assert difference is not None and difference.position == 9


def test_a_position_found_by_the_first_check_is_reported_after_the_runs_are_dropped() -> None:
    world = VerifiedWorld()
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


def test_a_worker_that_stores_our_tokens_is_checked_occasionally() -> None:
    world = VerifiedWorld()
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
def test_incomplete_events_prove_no_difference(state: StreamState | None) -> None:
    world = VerifiedWorld()
    member = world.fleet.get(W)
    assert member is not None
    member.stream = state
    for i in range(5):
        decision = world.decide(ids(i))
        world.store([7, *ids(i)])
        world.answer(decision, 0)
        world.now += SETTLE_S
    assert world.watched.tokens.stored.num == 0


def test_samples_without_an_answer_are_dropped() -> None:
    world = VerifiedWorld()
    for i in range(2000):
        world.decide(ids(i))
    assert len(world.watched.tokens.samples) == 4
    newest = max(int(sample.tokens[0]) for sample in world.watched.tokens.samples.values())
    assert newest > 1000 * 1000
