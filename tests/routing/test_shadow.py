import random

from gateway.core.decision import Decision, Query
from gateway.core.value import replace
from gateway.policies.framework.guard import PolicyFaults, PolicyGuard
from gateway.routing import shadow as module
from gateway.routing.shadow import ShadowComparison
from tests.support.fakes import decision
from tests.support.worlds.experiments import FakePolicy

RNG = random.Random(1)


def made(id: str = "d1") -> Decision:
    """Decision for the first of two candidates; the second has one more token cached."""
    some = decision(id, "a:1", "b:1")
    return replace(some, query=Query("m", 100), overlap_tokens=0)


def test_choice_and_overlap_of_a_shadow_are_compared() -> None:
    compared = ShadowComparison(FakePolicy(0), PolicyFaults())
    compared.decided(made("d1"), RNG)
    compared.policy = FakePolicy(1)
    compared.decided(made("d2"), RNG)
    result = compared.describe()
    assert (result["compared"], result["agreed"], result["agreement_share"]) == (2, 1, 0.5)
    assert (
        result["compared_prompt_tokens"],
        result["shadow_overlap_tokens"],
        result["active_overlap_tokens"],
    ) == (
        200,
        1,
        0,
    )


def test_predictions_are_compared_with_measurements() -> None:
    compared = ShadowComparison(FakePolicy(0, 1.0), PolicyFaults())
    for id, measured_s in (("d1", 2.0), ("d2", None)):
        compared.decided(made(id), RNG)
        compared.ended(made(id), measured_s)
        compared.ended(made(id), measured_s)  # counted once
    compared.policy = FakePolicy(1, 7.0)
    compared.decided(made("d3"), RNG)
    compared.ended(made("d3"), 2.0)
    result = compared.describe()
    assert (result["predicted_ttft_s"], result["measured_ttft_s"], result["prediction_error"]) == (
        4.0,
        2.0,
        0.5,
    )


def test_a_failed_shadow_policy_is_not_compared() -> None:
    faults = PolicyFaults()
    compared = ShadowComparison(PolicyGuard("says", FakePolicy(5), 1.0, faults), faults)
    compared.decided(made(), RNG)
    assert (compared.describe()["compared"], compared.describe()["invalid"]) == (0, 1)


def test_requests_that_never_end_are_dropped(monkeypatch: object) -> None:
    compared = ShadowComparison(FakePolicy(0, 1.0), PolicyFaults())
    for i in range(module.MAX_OPEN + 10):
        compared.decided(made(f"d{i}"), RNG)
    assert len(compared._open) == module.MAX_OPEN
    compared.ended(made("d0"), 1.0)
    assert compared.promises.num == 0
