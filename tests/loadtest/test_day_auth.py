"""The figure `day.auth_cpu_us`, and that it means what it says."""

import shutil
from pathlib import Path

import pytest

from loadtest import day_auth
from loadtest.day_auth import KEYED, PLAIN, SALTED, Cost, figures, run


def round_of(plain: float, keyed: float, salted: float) -> dict[str, Cost]:
    costs = {PLAIN: plain, KEYED: keyed, SALTED: salted}
    return {name: Cost(us * 100, 100) for name, us in costs.items()}


def test_what_a_key_adds_is_a_ratio_within_a_round() -> None:
    rounds = [round_of(50, 52, 53), round_of(100, 103, 107)]  # a machine that was busy, in the second
    found = {figure.name: figure for figure in figures(rounds)}
    assert found["day.auth_cpu_us"].rounds == [2.0, 1.5]
    assert (found["day.auth_cpu_us"].value, found["day.auth_cpu_us"].goal) == (1.5, 3.0)
    assert found["day.auth_with_salt_cpu_us"].rounds == [3.0, 3.5]
    assert found["day.plain_cpu_us"].value == 50


@pytest.mark.process
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_all_three_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_auth, "SLICES", 1)
    monkeypatch.setattr(day_auth, "NUM_BODIES", 2_000)
    (costs,) = run(tmp_path, num_rounds=1, slice_s=0.3)
    assert set(costs) == {PLAIN, KEYED, SALTED}
    assert all(cost.num_requests > 0 and cost.per_request_us > 0 for cost in costs.values())
