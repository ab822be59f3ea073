"""The advice as /admin/advice reports it."""

import msgspec
import pytest

from gateway.admin.advice_fields import AdviceView
from gateway.core.worker import Role
from gateway.scaling.report import MAX_REMOVALS, describe
from tests.support.worlds.planner import PlannerWorld


def test_report_has_the_fields_of_the_reference() -> None:
    world = PlannerWorld()
    one = world.join("a:1")
    world.round()
    world.send(one, 20)
    world.round(12)
    found = msgspec.convert(describe(world.planner.advices()), AdviceView)
    (group,) = found.groups
    assert (group.id, group.workers, group.is_idle) == ("llama:both", 1, False)
    assert group.demand.prompt_tokens_per_s == pytest.approx(1000 * group.demand.requests_per_s)
    assert group.worker_capacity.requests_per_s > 0.0 and group.remove[0].worker == one
    assert not found.prefill_decode


def test_split_has_the_fields_of_the_reference_and_whole_numbers() -> None:
    world = PlannerWorld()
    prefills = [world.join(f"p:{number}", Role.PREFILL) for number in range(2)]
    decode = world.join("d:1", Role.DECODE)
    world.round()
    assert not describe(world.planner.advices(), world.planner.splits())["prefill_decode"]
    world.send(decode, 60, computed=10)
    world.speeds.computed(prefills[0], 60 * 8000)
    world.round()
    found = describe(world.planner.advices(), world.planner.splits())
    (split,) = msgspec.convert(found, AdviceView).prefill_decode
    assert split.model == "llama" and (split.prefill_workers, split.decode_workers) == (2, 1)
    assert 0.0 < split.prefill_share_low <= split.prefill_share <= split.prefill_share_high < 1.0
    assert split.requests_per_s >= split.present_requests_per_s > 0.0


def test_list_of_removals_is_bounded() -> None:
    world = PlannerWorld()
    for number in range(MAX_REMOVALS + 5):
        world.join(f"a:{number}")
    world.round()
    (group,) = describe(world.planner.advices())["groups"]
    assert len(group["remove"]) == MAX_REMOVALS
