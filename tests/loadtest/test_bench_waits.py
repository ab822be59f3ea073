"""The figures `wait.error`, and that they are measured where requests wait."""

import pytest

from loadtest import bench_waits
from loadtest.bench_waits import SCENARIOS, Waits, factor_of, figures_of, measured


@pytest.mark.parametrize(
    ("estimate_s", "wait_s", "factor"),
    [(4.0, 4.0, 1.0), (2.0, 4.0, 2.0), (8.0, 4.0, 2.0), (0.0, 4.0, 20.0), (0.001, 0.01, 1.0)],
)
def test_the_error_is_a_factor_in_either_direction(estimate_s: float, wait_s: float, factor: float) -> None:
    assert factor_of(estimate_s, wait_s) == pytest.approx(factor)


def test_the_first_seconds_have_a_figure_of_their_own() -> None:
    waits = Waits([(0.0, 1.0, 4.0), (1.9, 1.0, 4.0), (2.1, 4.0, 4.0), (9.0, 6.0, 4.0), (9.0, 4.0, 4.0)])
    late, early, longest = figures_of("x", waits)
    assert (late.name, late.value, early.name, early.value) == (
        "wait.error.x",
        1.0,
        "wait.error_early.x",
        4.0,
    )
    assert (longest.value, longest.rounds) == (4.0, [5.0])


@pytest.mark.process
@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_scenario_has_requests_that_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_waits, "RUN_S", 0.5)
    monkeypatch.setattr(bench_waits, "NUM_CLIENTS", 36)
    waits = await measured(SCENARIOS[name])
    assert waits.pairs and all(wait_s > 0 for _, _, wait_s in waits.pairs)
    assert figures_of(name, waits)[-1].rounds == [float(len(waits.pairs))]
