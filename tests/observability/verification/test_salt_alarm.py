"""Alarms for cached tokens of other salts."""

import logging

import pytest

from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksRemoved
from gateway.observability.verification.misprediction import ErrorCause, Evidence
from gateway.observability.verification.salt_alarm import SaltAlarm, is_across_salts
from tests.support.fakes import worker
from tests.support.worlds.verified import VerifiedWorld, W, ids

SEEN = Evidence(0, 16, 0, 0, is_reported_now=False, tokens_differ=False)


@pytest.mark.parametrize("cause", ErrorCause)
def test_only_cached_tokens_that_nothing_explains_are_across_salts(cause: ErrorCause) -> None:
    assert is_across_salts(SEEN, cause) is (cause is ErrorCause.NOT_REPORTED)
    assert not is_across_salts(Evidence(8, 16, 8, 0, False, False), cause), "some of them were its own"
    assert not is_across_salts(Evidence(0, 0, 0, 0, False, False), cause)


def test_an_alarm_is_logged_and_names_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, int]] = []
    alarm = SaltAlarm(lambda url, rank: asked.append((url, rank)))
    for _ in range(2):
        assert alarm.answered(worker(), SEEN, ErrorCause.NOT_REPORTED)
    assert not alarm.answered(worker(), SEEN, ErrorCause.REPORTED_LATER)
    assert asked == [("http://w:1", 0)] * 2
    (line,) = caplog.messages
    assert line.startswith("worker w:1: 16 cached tokens for a prompt under a tenant's salt, none of them")


def publishing() -> VerifiedWorld:
    """A worker with events that are known to name salts."""
    world = VerifiedWorld()
    decision = world.decide(ids(9), cache_salt="tenant")
    world.store(ids(9), salt="tenant")
    world.answer(decision, 0)
    assert world.watched.publishes_salts
    return world


def test_a_hit_under_another_salt_is_an_alarm() -> None:
    world = publishing()
    world.store(ids())  # without a salt, as a route that drops salts publishes them
    world.ask(ids(), 16, cache_salt="tenant")
    assert world.watched.num_salt_alarms == 1 and world.suspected == [("http://w:1", 0)]


def test_an_engine_that_publishes_no_salts_raises_no_alarm() -> None:
    """SGLang 0.5.11 to 0.5.17 keeps tenants apart, and publishes their blocks as anybody's."""
    world = VerifiedWorld()
    world.store(ids())
    for _ in range(3):
        world.ask(ids(), 16, cache_salt="tenant")
    assert world.causes() == {ErrorCause.NOT_REPORTED: 3}
    assert world.watched.num_salt_alarms == 0 and world.suspected == []


def test_what_can_be_explained_is_no_alarm() -> None:
    world = publishing()
    world.store(ids())
    world.ask(ids(), 0, cache_salt="tenant")  # apart
    world.ask(ids(1), 16)  # without a salt
    world.ask(ids(2), 16, num_tokens=19, cache_salt="tenant")  # it makes other tokens
    member = world.fleet.get(W)
    assert member is not None
    member.stream = StreamState.BLIND
    world.ask(ids(3), 16, cache_salt="tenant")
    assert world.watched.num_salt_alarms == 0 and world.suspected == []


def test_blocks_stored_for_the_tenant_meanwhile_are_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """The tenant's own request through another gateway was faster."""
    world = publishing()
    with caplog.at_level(logging.INFO):
        decision = world.decide(ids(), cache_salt="tenant")
        names = world.store(ids(), salt="tenant")
        world.answer(decision, 16)
        world.index.apply(W, BlocksRemoved(names))
        world.ask(ids(), 0, cache_salt="tenant")
    assert world.causes() == {ErrorCause.REPORTED_LATER: 1}
    assert world.watched.num_salt_alarms == 0 and caplog.messages == []
