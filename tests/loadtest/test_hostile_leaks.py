"""A few of each attack on a real gateway: the figures name their numbers."""

import pytest

from loadtest import hostile_leaks
from loadtest.hostile_leaks import FULL, REDUCED, SMOKE, AttackCounts, counts, measure

pytestmark = pytest.mark.process


def test_the_number_of_attacks_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FULL", "SMOKE"):
        monkeypatch.delenv(name, raising=False)
    assert counts() is REDUCED
    monkeypatch.setenv("SMOKE", "1")
    assert counts() is SMOKE
    monkeypatch.setenv("FULL", "1")
    assert counts() is FULL


def test_a_figure_names_the_number_of_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_leaks, "FULL", AttackCounts(20, 20, 100))
    monkeypatch.setattr(hostile_leaks, "counts", lambda: AttackCounts(20, 20, 20, 2, 20))
    found = {figure.name: figure for figure in measure()}
    assert list(found) == [
        "hostile.leak_connections_mb",
        "hostile.leak_aborts_mb",
        "hostile.leak_prompts_mb.20",
        "hostile.bookings_left",
    ]
    assert found["hostile.bookings_left"].value == 0
    assert all(len(figure.rounds) == 11 for name, figure in found.items() if "leak" in name)
