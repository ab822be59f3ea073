from gateway.core.decision import Candidate, Query
from gateway.core.rendezvous import ranked
from gateway.policies.base import Policy
from gateway.policies.framework.registry import PolicyRegistry
from gateway.policies.tenant_fairness import FairnessFilter
from tests.policies.contract import PolicyContract, candidate

BUSY = [candidate(f"w{i}:8000", booked=100) for i in range(8)]


def ask(
    part: FairnessFilter, tenant: str | None, num_tokens: int = 1000, some: list[Candidate] = BUSY
) -> set[str]:
    return {each.id for each in part.keep(Query("m", num_tokens, tenant=tenant), some)}


class TestTenantFairness(PolicyContract):
    def make(self) -> Policy:
        return PolicyRegistry().policy("tenant_fairness")


def test_a_single_tenant_may_use_all_workers() -> None:
    part = FairnessFilter()
    assert [len(ask(part, "a")) for _ in range(20)] == [8] * 20


def test_a_flooding_tenant_keeps_to_a_share_of_workers() -> None:
    part = FairnessFilter()
    for _ in range(20):
        ask(part, "flood")
    assert len(ask(part, "other")) == 8
    own = ask(part, "flood")
    assert len(own) == 4
    assert ask(part, "flood") == own
    ask(part, None)
    assert len(ask(part, "flood")) == 3  # three tenants, one of them without a name


def test_idle_workers_are_open_to_every_tenant() -> None:
    part = FairnessFilter()
    ask(part, "other")
    for _ in range(20):
        ask(part, "flood")
    some = [*BUSY, candidate("idle:1"), candidate("waits:1", waiting=1)]
    own = {each.id for each in ranked("flood", some)[:5]}
    assert ask(part, "flood", some=some) == own | {"idle:1"}


def test_equal_tenants_may_use_all_workers() -> None:
    part = FairnessFilter()
    for tenant in "abc" * 20:
        ask(part, tenant)
    assert [len(ask(part, tenant)) for tenant in "abc" * 10] == [8] * 30


def test_old_requests_are_forgotten() -> None:
    part = FairnessFilter(window_tokens=50_000)
    for _ in range(40):
        ask(part, "flood")
    ask(part, "other")
    assert len(ask(part, "flood")) == 4
    for _ in range(1500):
        ask(part, "other")
    assert repr(part) == "FairnessFilter(1 tenants)"
    assert len(ask(part, "flood")) == 8


def test_a_twin_has_its_own_state() -> None:
    part = FairnessFilter()
    ask(part, "other")
    for _ in range(20):
        ask(part, "flood")
    twin = part.twin()
    assert len(ask(twin, "flood")) == 4
    for _ in range(100):
        ask(twin, "other")
    assert len(ask(twin, "flood")) == 8
    assert len(ask(part, "flood")) == 4
