import asyncio

from gateway.core.decision import Decision
from gateway.core.outcome import Outcome
from gateway.policies.framework.guard import PolicyFaults
from gateway.routing import experiments as module
from gateway.routing.experiments import PolicyExperiments, Shadow, keep_compared
from tests.support.patience import until
from tests.support.worlds.experiments import FakePolicy, decide, made_decision


def end(experiments: PolicyExperiments, decision: Decision, ttft_s: float | None = 1.0) -> None:
    experiments.finished(decision, Outcome("ended", 200, ttft_s, None, 2.0))


def test_a_single_policy_has_no_scores() -> None:
    experiments = PolicyExperiments({"p": 1.0}, {})
    assert (experiments.is_on, experiments.describe()) == (False, {})
    decide(experiments, made_decision())
    end(experiments, made_decision())
    assert not experiments.step()


def test_each_arm_is_scored_by_its_own_requests() -> None:
    experiments = PolicyExperiments({"p": 0.9, "q": 0.1}, {})
    for name, num in (("p", 3), ("q", 2), ("gone", 1)):
        for _ in range(num):
            end(experiments, made_decision(policy=name))
    assert experiments.is_on and not experiments.step()
    scores = experiments.describe()["scores"]
    assert [(arm["name"], arm["share"], arm["requests"]) for arm in scores] == [("p", 0.9, 3), ("q", 0.1, 2)]


def test_shadow_policies_choose_later_and_in_order() -> None:
    shadows = {
        "says": Shadow(FakePolicy(0, 0.5), PolicyFaults()),
        "other": Shadow(FakePolicy(1), PolicyFaults()),
    }
    experiments = PolicyExperiments({"p": 1.0}, shadows)
    decide(experiments, made_decision("d1"), made_decision("d2", attempt=2))
    end(experiments, made_decision("d1"))
    end(experiments, made_decision("d2", attempt=2))
    assert [each["compared"] for each in experiments.describe()["shadow"]] == [0, 0]
    assert [experiments.step() for _ in range(3)] == [True, True, False]
    says, other = experiments.describe()["shadow"]
    assert (says["name"], says["compared"], says["agreed"], says["prediction_error"]) == ("says", 1, 1, 0.5)
    assert (other["compared"], other["agreed"], other["prediction_error"]) == (1, 0, None)


def test_requests_beyond_the_queue_are_dropped_and_counted() -> None:
    experiments = PolicyExperiments({"p": 1.0}, {"says": Shadow(FakePolicy(0), PolicyFaults())})
    decide(experiments, *[made_decision(f"d{i}") for i in range(module.MAX_QUEUED + 5)])
    for i in range(3 * module.MAX_QUEUED):
        end(experiments, made_decision(f"d{i}"))
    assert experiments.describe()["dropped_decisions"] == 5
    num = 0
    while experiments.step():
        num += 1
    assert num == 2 * module.MAX_QUEUED
    assert experiments.describe()["shadow"][0]["compared"] == module.MAX_QUEUED


def test_a_reload_keeps_the_counts() -> None:
    faults = PolicyFaults()
    experiments = PolicyExperiments({"p": 1.0}, {"says": Shadow(FakePolicy(0), faults)})
    faults["says", "raised"] += 1
    decide(experiments, made_decision())
    experiments.step()
    end(experiments, made_decision())
    experiments.replace(
        {"p": 0.5, "q": 0.5},
        {"says": Shadow(FakePolicy(1), PolicyFaults()), "new": Shadow(FakePolicy(0), PolicyFaults())},
    )
    decide(experiments, made_decision())
    while experiments.step():
        pass
    says, new = experiments.describe()["shadow"]
    assert (says["compared"], says["agreed"], says["raised"], new["compared"]) == (2, 1, 1, 1)
    assert [arm["requests"] for arm in experiments.describe()["scores"]] == [1, 0]


async def test_the_queue_is_worked_off_between_requests() -> None:
    await keep_compared(PolicyExperiments({"p": 1.0}, {}))  # ends only: there is no choice to compare
    experiments = PolicyExperiments({"p": 1.0}, {"says": Shadow(FakePolicy(0), PolicyFaults())})
    task = asyncio.get_running_loop().create_task(keep_compared(experiments))
    try:
        decide(experiments, made_decision())
        await until(lambda: experiments.comparisons["says"].num_compared)
    finally:
        task.cancel()
