import logging
import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from gateway.config import load
from gateway.core.decision import Query
from gateway.core.errors import ConfigError
from gateway.core.value import replace
from gateway.policies.base import Policy
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.policies.framework.guard import PolicyGuard
from gateway.policies.least_load import LeastLoad
from gateway.routing.active_policy import ActivePolicy, PolicyCollector, library_of
from tests.policies.contract import candidate
from tests.support.fakes import decision

LAST = "def choose(query, candidates, rng):\n    return len(candidates) - 1\n"
FIRST = LAST.replace("len(candidates) - 1", "0")
BROKEN = "def choose(query, candidates, rng):\n    return candidate[0]\n"
BY_PREFIX = """
reads_prefix = True
def choose(query, candidates, rng):
    return (query.prefix or 0) % len(candidates)
"""
MOODY = """
def choose(query, candidates, rng):
    if query.model == "odd":
        raise ValueError("odd")
    return 0
"""
EXPLAINS = """
class Own:
    name = "own"
    def choose(self, query, candidates, rng):
        return rng.randrange(len(candidates))

    def explain(self, query, candidates):
        if query.model == "odd":
            raise ValueError("odd")
        return [{"prefill_s": 1.0} for _ in candidates]
"""


def active_policy(**options: Any) -> ActivePolicy:
    return ActivePolicy(load(options, {}))


def with_file(tmp_path: Path, text: str, **options: Any) -> ActivePolicy:
    (tmp_path / "own.py").write_text(text)
    return active_policy(policy_file=str(tmp_path / "own.py"), **options)


def chosen(policy: Policy) -> int:
    return policy.choose(Query("m", 1), [candidate(name) for name in "abc"], random.Random(1)).index


def sample(metrics: list[Metric], name: str, **labels: str) -> float:
    (found,) = (s.value for m in metrics for s in m.samples if (s.name, s.labels) == (name, labels))
    return found


def test_options_reach_the_policy_library() -> None:
    config = load({"policy_medium_worth": ["CPU=0.1"], "policies": {"mine": {"policy": "random"}}}, {})
    library = library_of(config)
    policy = library.policy(config.policy.name)
    assert isinstance(policy, ExpectedTtft) and policy.worth["CPU"] == 0.1
    assert library.policy("mine").name == "mine"


def test_a_policy_given_as_text_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BROKEN)
    config = load({"policy_file": str(tmp_path / "own.py")}, {})
    assert chosen(ActivePolicy(config, LAST).policy) == 2


def test_the_policy_of_a_file_is_used_where_none_is_named(tmp_path: Path) -> None:
    assert chosen(with_file(tmp_path, LAST).policy) == 2
    assert with_file(tmp_path, LAST).describe()["policy"] == "own"
    assert with_file(tmp_path, LAST, policy="random").policy.name == "random"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BROKEN, "policy own: own.py:2: NameError: name 'candidate' is not defined"),
        (LAST.replace("- 1", "- 0"), "policy own: it returned the index 1 for 1 candidates"),
        ("def choose(:", "own.py:1: invalid syntax"),
    ],
)
def test_an_invalid_policy_is_rejected_at_the_start(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_file(tmp_path, text)
    assert words in str(caught.value)


async def test_a_file_is_reloaded_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvgate.policies")
    own, policies = with_file(tmp_path, LAST), list[Policy]()
    own.changed = policies.append
    (tmp_path / "own.py").write_text(BROKEN)
    with pytest.raises(ConfigError):
        await own.reload()
    assert (policies, chosen(own.policy)) == ([], 2)
    assert own.describe()["file"]["error"].startswith("policy own: own.py:2: NameError")
    (tmp_path / "own.py").write_text(FIRST)
    await own.reload()
    assert [chosen(policy) for policy in policies] == [0] and policies == [own.policy]
    assert own.describe()["file"]["error"] is None
    (tmp_path / "own.py").write_text(LAST)
    await own.reload()
    assert chosen(own.policy) == 2
    metrics = list(PolicyCollector(own).collect())
    assert sample(metrics, "kvgate_policy_file_reloads_total", result="loaded") == 2
    assert sample(metrics, "kvgate_policy_file_reloads_total", result="rejected") == 1
    refused, *read = [record.getMessage() for record in caplog.records]
    assert refused.startswith(
        "policies not reloaded, keeping the current ones: policy own: own.py:2: NameError"
    )
    assert read == ["policies reloaded; active policy: own"] * 2


async def test_fallbacks_are_counted_over_all_reloads(tmp_path: Path) -> None:
    own = with_file(tmp_path, MOODY, policy_budget_ms=10_000.0)
    for _ in range(2):
        assert isinstance(own.policy, PolicyGuard)
        own.policy.choose(Query("odd", 1), [candidate("a")], random.Random(1))
        await own.reload()
    assert own.describe()["fallbacks"] == [{"name": "own", "raised": 2}]
    metrics = list(PolicyCollector(own).collect())
    assert sample(metrics, "kvgate_policy_fallbacks_total", policy="own", reason="raised") == 2


def test_costs_are_explained_by_the_policy_that_made_them() -> None:
    own, some = active_policy(policy="latency_slo"), (candidate("a"), candidate("b", booked=100))
    made = replace(decision("d"), policy="latency_slo", candidates=some, query=Query("m", 1000))
    parts = own.parts_of(made)
    assert [list(part) for part in parts] == [["start_s", "booked_s", "prefill_s", "fetch_s", "wait_s"]] * 2
    assert own.parts_of(replace(made, policy="gone")) == own.parts_of(replace(made, query=None)) == ()
    plain = active_policy(policy="random")
    assert plain.parts_of(replace(made, policy="random")) == ()


def test_a_policy_that_fails_to_explain_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = with_file(tmp_path, EXPLAINS)
    made = replace(decision("d"), policy="own", query=Query("odd", 1))
    assert own.parts_of(made) == ()
    assert "policy own failed to explain its costs: own.py:9: ValueError: odd" in caplog.text
    assert own.parts_of(replace(made, query=Query("m", 1))) == [{"prefill_s": 1.0}]


def test_sessions_are_split_between_the_policies_of_an_ab_test() -> None:
    own = active_policy(policy_ab={"prefix_overlap": 90.0, "latency_slo": 10.0})
    assert [(arm["name"], arm["share"]) for arm in own.describe()["scores"]] == [
        ("prefix_overlap", 0.9),
        ("latency_slo", 0.1),
    ]
    assert own.describe()["policy"] == "ab"
    made = replace(decision("d"), policy="latency_slo", candidates=(candidate("a"),), query=Query("m", 1))
    assert list(own.parts_of(made)[0]) == ["start_s", "booked_s", "prefill_s", "fetch_s", "wait_s"]
    assert own.parts_of(replace(made, policy="prefix_overlap")) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy_ab": {"random": 1.0, "best": 1.0}}, "policy: there is no policy 'best'"),
        (
            {"policy_ab": {"random": 1.0, "least_load": 0.0}},
            "the share of least_load is 0; give one above 0",
        ),
        ({"policy_ab": {"random": 1.0}}, "ab: give two policies or more"),
        (
            {"policy_ab": {"random": 1.0, "least_load": 1.0}, "policy": "random"},
            "ab: names the policies in use",
        ),
        ({"policy_shadow": ["best"]}, "policy: there is no policy 'best'"),
    ],
)
def test_an_invalid_experiment_is_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        active_policy(**options)


async def test_shadow_policies_are_reloaded(tmp_path: Path) -> None:
    own = with_file(tmp_path, MOODY, policy="random", policy_shadow=["own", "least_load"])
    comparison = own.experiments.comparisons["own"]
    before = comparison.policy
    await own.reload()
    assert comparison.policy is not before and list(own.experiments.comparisons) == ["own", "least_load"]
    assert isinstance(comparison.policy, PolicyGuard)
    comparison.policy.choose(Query("odd", 1), [candidate("a")], random.Random(1))
    assert (comparison.faults.total(), own.faults.total()) == (1, 0)


def test_the_prefix_is_computed_where_a_policy_reads_it(tmp_path: Path) -> None:
    assert not active_policy().reads_prefix
    assert not active_policy(
        policy_ab={"prefix_overlap": 1.0, "topology": 1.0}, policy_shadow=["random"]
    ).reads_prefix
    assert active_policy(policy_shadow=["consistent_hash"]).reads_prefix
    assert active_policy(policy="mine", policies={"mine": {"scorers": {"consistent_hash": 1.0}}}).reads_prefix
    assert not with_file(tmp_path, LAST).reads_prefix
    assert with_file(tmp_path, BY_PREFIX).reads_prefix
    assert with_file(tmp_path, BY_PREFIX, policy="random", policy_ab={}, policy_shadow=["own"]).reads_prefix


def test_a_policy_that_reads_an_undeclared_prefix_is_rejected_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="declares `reads_prefix = True`"):
        with_file(tmp_path, BY_PREFIX.replace("reads_prefix = True", ""))


def test_the_router_gets_each_policy_and_its_need_of_the_prefix(tmp_path: Path) -> None:
    class FakeRouter:
        policy: Policy = LeastLoad()
        reads_prefix = True

    router, plain = FakeRouter(), active_policy()
    plain.drive(router)
    assert (router.policy, router.reads_prefix) == (plain.policy, False)
    own, router = with_file(tmp_path, BY_PREFIX), FakeRouter()
    router.reads_prefix = False
    own.drive(router)
    assert router.reads_prefix
    own.changed(plain.policy)
    assert (router.policy, router.reads_prefix) == (plain.policy, True)
