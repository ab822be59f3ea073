"""Metrics of the advice."""

from gateway.core.worker import Role
from gateway.scaling.metrics import METRICS, ScalingCollector
from tests.support.worlds.planner import PlannerWorld


def test_each_group_has_its_figures_and_unknown_ones_are_absent() -> None:
    world = PlannerWorld()
    one = world.join("a:1")
    assert world.planner.advice("idle", Role.DECODE) is None
    world.round()
    world.send(one, 10)
    world.round()
    found = {
        (sample.name, sample.labels["model"], sample.labels["role"]): sample.value
        for family in ScalingCollector(world.planner.advices).collect()
        for sample in family.samples
    }
    assert {name for name, model, _ in found if model == "llama"} == {spec.name for spec in METRICS}
    assert found["kvgate_scaling_workers", "llama", "both"] == 1.0
    assert found["kvgate_scaling_active", "llama", "both"] == 1.0
    assert found["kvgate_scaling_slo_attainment_ratio", "llama", "both"] == 1.0
    assert found["kvgate_scaling_desired_workers", "idle", "decode"] == 0.0
    absent = {
        "kvgate_scaling_ttft_seconds",
        "kvgate_scaling_backlog_seconds",
        "kvgate_scaling_slo_attainment_ratio",
    }
    assert absent.isdisjoint(name for name, model, _ in found if model == "idle")
