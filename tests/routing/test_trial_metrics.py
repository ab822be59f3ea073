from prometheus_client import CollectorRegistry, generate_latest

from gateway.core.outcome import Outcome
from gateway.policies.framework.guard import PolicyFaults
from gateway.routing.trial_metrics import ExperimentsCollector
from gateway.routing.trials import PolicyExperiments, Shadow
from tests.routing.test_shadow import FakePolicy
from tests.routing.test_trials import decide, made


def page(trials: PolicyExperiments) -> str:
    registry = CollectorRegistry()
    registry.register(ExperimentsCollector(trials))
    return generate_latest(registry).decode()


def test_without_trials_no_metrics_are_exposed() -> None:
    assert page(PolicyExperiments({"p": 1.0}, {})) == ""


def test_scores_and_comparisons_are_exposed_by_policy() -> None:
    trials = PolicyExperiments({"p": 1.0}, {"says": Shadow(FakePolicy(0, 0.5), PolicyFaults())})
    decide(trials, made())
    trials.finished(made(), Outcome("ended", 200, 0.75, None))
    while trials.step():
        pass
    text = page(trials)
    for line in (
        'kvgate_policy_requests_total{policy="p"} 1.0',
        'kvgate_policy_failed_requests_total{policy="p"} 0.0',
        'kvgate_policy_ttft_seconds_sum{policy="p"} 0.75',
        'kvgate_shadow_decisions_total{policy="says"} 1.0',
        'kvgate_shadow_agreements_total{policy="says"} 1.0',
        'kvgate_shadow_predicted_ttft_seconds_total{policy="says"} 0.5',
        'kvgate_shadow_measured_ttft_seconds_total{policy="says"} 0.75',
        "kvgate_shadow_dropped_decisions_total 0.0",
    ):
        assert f"{line}\n" in text
