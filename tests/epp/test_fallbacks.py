"""Fallbacks of a decision; the exchange is one of a whole gateway."""

import pytest

from gateway.epp.fallbacks import MAX_FALLBACKS, fallbacks_of
from tests.support.worlds.exchanges import ExchangeWorld


def fallbacks(world: ExchangeWorld, num: int, *exclude: str) -> list[str]:
    exchange, _ = world.ask()
    decision = exchange.decision
    assert decision is not None
    return [each.id for each in fallbacks_of(exchange, None, decision, exclude, num)]  # type: ignore[arg-type]


def test_the_other_workers_follow_each_once_and_nothing_is_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3")
    assert sorted(fallbacks(world, 5)) == ["w:2", "w:3"]
    assert world.in_flight() == 1


def test_excluded_workers_are_none_and_none_may_be_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3")
    assert fallbacks(world, 5, "w:2") == ["w:3"]
    assert fallbacks(world, 0) == []


def test_the_list_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, *[f"w:{number}" for number in range(1, 20)])
    assert len(fallbacks(world, 1000)) == MAX_FALLBACKS


def test_a_worker_that_needs_other_bytes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", "w:3")
    world.pools["w:3"].key = b"Bearer of its own"
    assert fallbacks(world, 5) == ["w:2"]
