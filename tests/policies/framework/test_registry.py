import logging
import random
import re
from pathlib import Path

import pytest

from gateway.core.decision import Query
from gateway.core.errors import ConfigError
from gateway.policies import COMPOSITIONS, DEFAULT, FILTERS, POLICIES, SCORERS
from gateway.policies.composition import Composition
from gateway.policies.framework import registry
from gateway.policies.framework.contract import run
from gateway.policies.framework.guard import PolicyGuard
from gateway.policies.framework.plugins import InstalledPlugins, Plugin, PolicyFile, read_file
from gateway.policies.framework.registry import SHIPPED, PolicyRegistry, worth_of
from gateway.policies.prefix_overlap import PrefixOverlap
from tests.policies.contract import candidate

SCORES = {"prefix_overlap": 3.0, "least_load": 1.0}


def file(tmp_path: Path, text: str) -> PolicyFile:
    path = tmp_path / "own.py"
    path.write_text(text)
    return read_file(path)


def composed(**more: Composition) -> PolicyRegistry:
    return PolicyRegistry(compositions=more)


def refused(name: str = "mine", **more: Composition) -> str:
    with pytest.raises(ConfigError) as caught:
        composed(**more).policy(name)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*POLICIES, *COMPOSITIONS])
def test_every_shipped_policy_has_its_name_and_keeps_the_contract(name: str) -> None:
    assert PolicyRegistry().policy(name).name == name
    assert [
        each for each in run("policy", lambda: PolicyRegistry(place="zone1").policy(name), 1e9) if each.fault
    ] == []


@pytest.mark.parametrize("name", FILTERS)
def test_every_shipped_filter_keeps_the_contract(name: str) -> None:
    assert [each for each in run("filter", FILTERS[name], 1e9) if each.fault] == []


@pytest.mark.parametrize("name", SCORERS)
def test_every_shipped_scorer_keeps_the_contract(name: str) -> None:
    assert [each for each in run("scorer", SCORERS[name], 1e9) if each.fault] == []


def test_a_composition_is_a_guarded_policy() -> None:
    some = [candidate("a", overlap=900, booked=500), candidate("b")]
    mine = Composition(filters=["topology"], scorers=SCORES, picker="max")
    policy = composed(mine=mine).policy("mine")
    assert isinstance(policy, PolicyGuard) and policy.name == "mine"
    choice = policy.choose(Query("m", 1000), some, random.Random(1))
    assert (choice.index, choice.reason) == (0, "prefix_overlap 0.90, least_load 0.00")


def test_compositions_may_use_other_policies() -> None:
    fair = Composition(filters=["tenant_fairness"], policy="near")
    near = Composition(filters=["topology"], policy="power_of_two")
    assert composed(fair=fair, near=near).policy("fair").name == "fair"
    assert composed(as_is=Composition(policy="random")).policy("as_is").name == "as_is"


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (Composition(), "policies.mine: give either scorers or a policy that chooses"),
        (Composition(scorers=SCORES, policy="random"), "policies.mine: give either scorers or a policy"),
        (Composition(policy="random", picker="max"), "policies.mine: a picker goes with scorers"),
        (
            Composition(policy="best"),
            "policies.mine.policy: there is no policy 'best'; known: expected_ttft,",
        ),
        (
            Composition(filters=["no"], scorers=SCORES),
            "policies.mine.filters: there is no filter 'no'; known: top",
        ),
        (
            Composition(scorers={"no": 1}),
            "policies.mine.scorers: there is no scorer 'no'; known: prefix_overlap,",
        ),
        (
            Composition(scorers=SCORES, picker="no"),
            "policies.mine.picker: there is no picker 'no'; known: max, ",
        ),
        (Composition(scorers={"least_load": 0}), "policies.mine.scorers: the weight of least_load is 0"),
        (
            Composition(scorers={"least_load": float("nan")}),
            "policies.mine.scorers: the weight of least_load is nan",
        ),
        (Composition(policy="mine"), "policies.mine: refers to itself through mine"),
    ],
)
def test_invalid_compositions_are_rejected(mine: Composition, words: str) -> None:
    assert refused(mine=mine).startswith(words)


def test_a_name_taken_twice_is_rejected(tmp_path: Path) -> None:
    for name in ("random", "topology", "auto"):
        assert refused(name, **{name: Composition(policy="least_load")}).startswith(
            f"policies.{name}: is the name of a built-in"
        )
    own = file(tmp_path, "class P:\n    name = 'random'\n    def choose(self, q, c, rng): return 0\n")
    with pytest.raises(ConfigError, match="own.py: there is a policy 'random' already"):
        PolicyRegistry(file=own)


def test_a_composition_that_only_favours_reuse_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    composed(mine=Composition(scorers={"prefix_overlap": 1})).policy("mine")
    assert "policies.mine.scorers: every scorer favours reuse" in caplog.text
    caplog.clear()
    composed(mine=Composition(scorers=SCORES)).policy("mine")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_auto_is_the_policy_of_the_file_or_the_default(tmp_path: Path) -> None:
    assert PolicyRegistry().resolved("auto") == DEFAULT
    own = file(tmp_path, "def choose(query, candidates, rng):\n    return len(candidates) - 1\n")
    policy = PolicyRegistry(file=own).policy("auto")
    assert policy.name == "own"
    assert policy.choose(Query("m", 1), [candidate("a"), candidate("b")], random.Random(1)).index == 1
    scores = file(tmp_path, "def score(query, candidates):\n    return [0.5] * len(candidates)\n")
    assert PolicyRegistry(file=scores).resolved("auto") == DEFAULT
    mine = Composition(scorers={"own": 1})
    assert PolicyRegistry(file=scores, compositions={"mine": mine}).policy("mine").name == "mine"
    two = "class {}:\n    def choose(self, q, c, rng): return 0\n"
    with pytest.raises(ConfigError, match="own.py: has several policies; choose one with --policy"):
        PolicyRegistry(file=file(tmp_path, two.format("P") + two.format("Q"))).policy("auto")


def test_a_policy_that_cannot_be_made_is_rejected(tmp_path: Path) -> None:
    own = file(
        tmp_path,
        "class P:\n    name = 'p'\n    def __init__(self, x): 0\n    def choose(self, q, c, rng): 0\n",
    )
    with pytest.raises(ConfigError, match="policy: .*own.py: 'p' cannot be created: .*missing 1 required"):
        PolicyRegistry(file=own).policy("p")


def test_packages_provide_policies_under_their_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = Plugin("theirs", "policy", "package p", POLICIES["random"])
    packages = InstalledPlugins({"theirs": theirs}, {"lost": "policy 'lost' cannot be loaded"})
    monkeypatch.setattr(registry, "installed", lambda: packages)
    library = PolicyRegistry()
    assert isinstance(library.policy("theirs"), PolicyGuard)
    assert [kind for kind in SHIPPED if "theirs" in library.names(kind)] == ["policy"]
    assert list(library.faults_of_packages) == ["policy 'lost' cannot be loaded"]
    for asked in (library.policy, library.making):
        with pytest.raises(ConfigError, match="policy 'lost' cannot be loaded"):
            asked("lost")
    with pytest.raises(ConfigError, match="there is no filter 'theirs'"):
        composed(mine=Composition(filters=["theirs"], policy="random")).policy("mine")
    kept = "class Kept:\n    name = 'theirs'\n    def keep(self, query, candidates): return candidates\n"
    assert set(PolicyRegistry(file=file(tmp_path, kept)).making("theirs")) == {"policy", "filter"}


def test_a_name_is_made_as_each_kind_that_has_it() -> None:
    made = {kind: make() for kind, make in PolicyRegistry().making("latency_slo").items()}
    assert {kind: type(each).__name__ for kind, each in made.items()} == {
        "policy": "LatencySlo",
        "scorer": "HeadroomScorer",
    }
    words = "there is no policy, filter, scorer or picker 'latency_slow'; did you mean latency_slo?"
    with pytest.raises(ConfigError, match=re.escape(words)):
        PolicyRegistry().making("latency_slow")


def test_the_worth_of_media_is_an_option() -> None:
    policy = PolicyRegistry(worth=worth_of(["CPU=0.25", "TAPE=0"])).policy("prefix_overlap")
    assert isinstance(policy, PrefixOverlap)
    assert policy.worth == {"CPU": 0.25, "TAPE": 0.0, "DISK": 0.5, "STORAGE": 0.5}


@pytest.mark.parametrize("text", ["CPU", "=0.5", "CPU=", "CPU=1.5", "CPU=-0.1", "CPU=nan", "CPU=fast"])
def test_an_invalid_worth_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="medium_worth: "):
        worth_of([text])
