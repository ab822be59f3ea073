"""Metrics of the advice."""

from gateway.core.worker import Role
from gateway.scaling.metrics import METRICS, ScalingCollector
from tests.support.worlds.planner import PlannerWorld

OF_SPLITS = {"kvgate_scaling_prefill_share_ratio", "kvgate_scaling_split_workers"}


def test_each_group_has_its_figures_and_unknown_ones_are_absent() -> None:
    world = PlannerWorld()
    one = world.join("a:1")
    assert world.planner.advice("idle", Role.DECODE) is None
    world.round()
    world.send(one, 10)
    world.round()
    found = {
        (sample.name, sample.labels["model"], sample.labels.get("role")): sample.value
        for family in ScalingCollector(world.planner.advices, world.planner.splits).collect()
        for sample in family.samples
    }
    of_groups = {spec.name for spec in METRICS} - OF_SPLITS
    assert {name for name, model, _ in found if model == "llama"} == of_groups
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


def test_split_is_shown_by_role_and_its_numbers_are_absent_with_one_worker() -> None:
    world = PlannerWorld()
    decode, prefill = world.join("d:1", Role.DECODE), world.join("p:1", Role.PREFILL)
    world.round()
    world.send(decode, 60, computed=0)
    world.speeds.computed(prefill, 60 * 1000)
    world.round()
    assert _of_splits(world).keys() == {("llama", None), ("llama", "prefill"), ("llama", "decode")}
    assert _of_splits(world)["llama", "prefill"] == _of_splits(world)["llama", "decode"] == 1.0
    world.fleet.drop(prefill)
    world.round()
    assert _of_splits(world).keys() == {("llama", None)}


def _of_splits(world: PlannerWorld) -> dict[tuple[str, str | None], float]:
    return {
        (sample.labels["model"], sample.labels.get("role")): sample.value
        for family in ScalingCollector(world.planner.advices, world.planner.splits).collect()
        for sample in family.samples
        if sample.name in OF_SPLITS
    }
