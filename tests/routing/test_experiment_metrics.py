from prometheus_client import CollectorRegistry, generate_latest

from gateway.core.outcome import Outcome
from gateway.policies.framework.guard import PolicyFaults
from gateway.routing.experiment_metrics import ExperimentsCollector
from gateway.routing.experiments import PolicyExperiments, Shadow
from tests.support.worlds.experiments import FakePolicy, decide, made_decision


def page(experiments: PolicyExperiments) -> str:
    registry = CollectorRegistry()
    registry.register(ExperimentsCollector(experiments))
    return generate_latest(registry).decode()


def test_without_experiments_no_metrics_are_exposed() -> None:
    assert page(PolicyExperiments({"p": 1.0}, {})) == ""


def test_scores_and_comparisons_are_exposed_by_policy() -> None:
    experiments = PolicyExperiments({"p": 1.0}, {"says": Shadow(FakePolicy(0, 0.5), PolicyFaults())})
    decide(experiments, made_decision())
    experiments.finished(made_decision(), Outcome("ended", 200, 0.75, None))
    while experiments.step():
        pass
    text = page(experiments)
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
