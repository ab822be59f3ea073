"""Metrics of the advice."""

from dataclasses import replace

from gateway.core.worker import Role, WorkerId
from gateway.scaling.advice import Removal
from gateway.scaling.metrics import METRICS, ScalingCollector
from tests.support.worlds.planner import PlannerWorld

LATER = {"kvgate_scaling_cold_start_seconds", "kvgate_scaling_removal_cost_tokens"}
"""Figures that need a worker's start, and a look at what is cached."""
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
    of_groups = {spec.name for spec in METRICS} - OF_SPLITS - LATER
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


def test_demand_and_capacity_are_tokens_by_kind_and_the_need_has_an_interval() -> None:
    world = PlannerWorld()
    one = world.join("a:1")
    world.round()
    world.send(one, 10)
    world.round()
    families = ScalingCollector(world.planner.advices, world.planner.splits).collect()
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, sample.labels.get("kind")): sample.value for sample in samples}
    advice = world.planner.advices()[0]
    assert found["kvgate_scaling_needed_low_workers", None] == advice.low
    assert found["kvgate_scaling_needed_high_workers", None] == advice.high > advice.low
    demand = advice.requests_per_s * advice.mix.prompt_tokens
    assert found["kvgate_scaling_demand_tokens_per_second", "prompt"] == demand > 0
    capacity = advice.worker_requests_per_s * advice.mix.output_tokens
    assert found["kvgate_scaling_worker_capacity_tokens_per_second", "output"] == capacity > 0


def test_cost_of_losing_each_worker_is_shown_where_it_is_known() -> None:
    costs = [Removal(WorkerId("a:1"), 640), Removal(WorkerId("b:1"), None)]
    world = PlannerWorld()
    world.join("a:1")
    world.round()
    advice = replace(world.planner.advices()[0], removals=costs, cold_start_s=42.0)
    families = ScalingCollector(lambda: [advice], lambda: []).collect()
    found = {s.name: (s.labels, s.value) for family in families for s in family.samples if s.name in LATER}
    assert found["kvgate_scaling_cold_start_seconds"][1] == 42.0
    labels = {"model": "llama", "role": "both", "worker": "a:1"}
    assert found["kvgate_scaling_removal_cost_tokens"] == (labels, 640.0)
