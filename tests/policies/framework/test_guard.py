import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Policy
from gateway.policies.baselines import RoundRobin
from gateway.policies.framework.guard import MAX_LATE, REST, WELL_AFTER, PolicyFaults, PolicyGuard, where
from tests.policies.contract import PolicyContract, candidate

QUERY, SOME = Query("m", 1000), [candidate("a", booked=5000), candidate("b")]
BUDGET_S = 0.005


class FakePolicy:
    """Policy with a scripted answer and duration."""

    name = "moody"

    def __init__(self) -> None:
        self.answer: Any = 0
        self.takes_s = 0.0
        self.now = 0.0
        self.num_asked = 0

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        self.num_asked += 1
        self.now += self.takes_s
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: Choice = self.answer
        return answer


class Watched:
    def __init__(self) -> None:
        self.policy, self.faults = FakePolicy(), PolicyFaults()
        self.guard = PolicyGuard("mine", self.policy, BUDGET_S, self.faults, lambda: self.policy.now)

    def choose(self) -> Choice:
        return self.guard.choose(QUERY, SOME, random.Random(1))


class TestGuard(PolicyContract):
    def make(self) -> Policy:
        return PolicyGuard("mine", RoundRobin(), 1e9, PolicyFaults())


def test_a_valid_choice_is_passed_on() -> None:
    watched = Watched()
    watched.policy.answer = Choice(0, "mine", (1.0, 2.0), 0.5)
    assert watched.choose() is watched.policy.answer
    watched.policy.answer = 0
    assert watched.choose() == Choice(0, "chosen by the policy")
    assert (watched.faults, watched.guard.name) == ({}, "mine")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (2, "invalid"),
        (-1, "invalid"),
        (None, "invalid"),
        (Choice(5, "x"), "invalid"),
        (Choice("0", "x"), "invalid"),  # type: ignore[arg-type]
        (Choice(0, "x", (1.0,)), "invalid"),
        (ZeroDivisionError("by zero"), "raised"),
    ],
)
def test_a_failed_choice_falls_back_to_least_load_and_is_counted(answer: Any, cause: str) -> None:
    watched = Watched()
    watched.policy.answer = answer
    choice = watched.choose()
    assert (choice.index, choice.reason) == (1, f"least work ahead, since mine failed: {cause}")
    assert watched.faults == {("mine", cause): 1}


def test_changes_are_logged_and_not_each_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvgate.policies")
    watched = Watched()
    for answer, num in ((ValueError("bad"), 50), (0, WELL_AFTER - 1), (7, 50), (0, WELL_AFTER), (0, 50)):
        watched.policy.answer = answer
        for _ in range(num):
            watched.choose()
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("policy mine failed; routing by least load until it recovers: test_guard.py:")
    assert first.endswith("ValueError: bad")
    assert second == "policy mine recovered"
    assert watched.faults == {("mine", "raised"): 50, ("mine", "invalid"): 50}


def test_a_late_choice_holds(caplog: pytest.LogCaptureFixture) -> None:
    """The machine may have been busy: nothing is charged to the policy, whatever came before."""
    watched = Watched()
    for _ in range(9):
        watched.policy.takes_s = BUDGET_S * 2
        assert [watched.choose().index for _ in range(MAX_LATE - 1)] == [0] * (MAX_LATE - 1)
        watched.policy.takes_s = 0.0
        assert watched.choose().index == 0
    assert (watched.faults, watched.guard.fault, caplog.records) == ({}, None, [])


def test_a_repeatedly_late_policy_rests() -> None:
    watched = Watched()
    watched.policy.takes_s = 1.0
    assert [watched.choose().index for _ in range(MAX_LATE)] == [*[0] * (MAX_LATE - 1), 1]
    for _ in range(50):
        assert watched.choose().index == 1
    assert watched.policy.num_asked == MAX_LATE
    assert watched.faults == {("mine", "over_budget"): 1, ("mine", "paused"): 50}
    assert watched.guard.fault == (
        "3 decisions in a row took longer than its budget of 5 ms, the last 1000.0 ms"
    )
    watched.policy.now += REST
    assert watched.choose().index == 1 and watched.choose().reason.endswith("paused")
    watched.policy.now += REST
    watched.policy.takes_s = 0.0
    assert watched.choose().index == 0


def test_a_policy_that_is_late_and_then_fails_rests_too() -> None:
    watched = Watched()
    watched.policy.takes_s, watched.policy.answer = 1.0, ValueError("bad")
    for _ in range(MAX_LATE + 50):
        watched.choose()
    assert watched.policy.num_asked == MAX_LATE
    assert watched.faults == {
        ("mine", "raised"): MAX_LATE - 1,
        ("mine", "over_budget"): 1,
        ("mine", "paused"): 50,
    }


def test_a_policy_that_is_late_now_and_then_has_not_recovered() -> None:
    """Only decisions in time count towards its recovery."""
    watched = Watched()
    watched.policy.answer = ValueError("bad")
    watched.choose()
    watched.policy.answer = 0
    for _ in range(WELL_AFTER - 1):
        watched.choose()
    watched.policy.takes_s = BUDGET_S * 2
    watched.choose()
    assert watched.guard.fault
    watched.policy.takes_s = 0.0
    watched.choose()
    assert watched.guard.fault is None


def test_a_twin_has_its_own_counts() -> None:
    watched = Watched()
    watched.policy.answer = ValueError()
    twin = watched.guard.twin()
    assert twin.choose(QUERY, SOME, random.Random(1)).index == 1
    assert watched.faults == {}


def test_a_guard_explains_the_costs_of_its_policy() -> None:
    watched = Watched()
    assert watched.guard.explain(QUERY, SOME) == [{}, {}]
    watched.policy.explain = lambda query, some: [{"booked_s": 1.0}] * len(some)  # type: ignore[attr-defined]
    assert watched.guard.explain(QUERY, SOME) == [{"booked_s": 1.0}] * 2


def test_the_faulty_line_is_logged() -> None:
    with pytest.raises(SyntaxError) as broken:
        compile("a = 1\nb = = 2\n", "/some/mine.py", "exec")
    assert where(broken.value) == "mine.py:2: invalid syntax"
    code = compile("def f(x):\n    return 1 / x\n", "/some/mine.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(ZeroDivisionError) as raised:
        names["f"](0)
    assert where(raised.value) == "mine.py:2: ZeroDivisionError: division by zero"
    assert where(raised.value, __file__).startswith("test_guard.py:")
    assert where(ValueError("no line")) == "ValueError: no line"
