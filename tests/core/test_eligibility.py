from dataclasses import replace

import pytest

from engines import ENGINES
from gateway.core.eligibility import Cause, Eligibility, is_from, summary
from gateway.core.errors import NotSupported, NoWorker
from gateway.core.fleet import Fleet
from gateway.core.worker import Role, Served, Transfer, Worker, WorkerId

BASE, ADAPTER = Served("m", "org/m"), Served("ad1", "org/m", "ad1", parent="m")


def worker(engine: str = "sglang", version: str | None = "0.5.23", name: str = "s:1") -> Worker:
    return Worker(WorkerId(name), f"http://{name}", (BASE, ADAPTER), engine=engine, version=version)


def names(one: Worker, *, needs_salt: bool = False) -> dict[str, Cause]:
    found = Eligibility(ENGINES, needs_salt=needs_salt).unusable(one)
    return {each.served.name: each.cause for each in found}


@pytest.mark.parametrize(
    ("first", "version", "expected"),
    [
        ((0, 5, 11), "0.5.10", False),
        ((0, 5, 11), "0.5.10.post1", False),
        ((0, 5, 11), "0.5.11", True),
        ((0, 5, 11), "v0.5.11", True),
        ((0, 5, 11), "0.5.11.post2", True),
        ((0, 5, 11), "0.5.11+cu128", True),
        ((0, 5, 11), "0.5.11rc1", False),
        ((0, 5, 11), "0.5.11.dev3+gabc", False),
        ((0, 5, 11), "0.5.12rc0", True),
        ((0, 5, 11), "0.6.0", True),
        ((0, 5, 11), "1.0.0", True),
        ((0, 5, 11), "0.4.99", False),
        # No readable version.
        ((0, 5, 11), None, False),
        ((0, 5, 11), "", False),
        ((0, 5, 11), "main", False),
        ((0, 5, 11), "0.5", False),
        ((0, 5, 11), "0.0.0.dev1+gabc", False),
        ((0, 5, 11), "9" * 5000, False),
        ((0, 5, 11), "9999999.0.0", False),
        ((), None, True),
        (None, "99.0.0", False),
    ],
)
def test_engine_versions_are_compared(
    first: tuple[int, ...] | None, version: str | None, expected: bool
) -> None:
    assert is_from(first, version) is expected


def test_an_adapter_is_not_used_where_the_base_would_answer() -> None:
    assert names(worker()) == {"ad1": Cause.ADAPTER}
    assert names(worker("vllm")) == names(worker("trtllm")) == names(worker("openai")) == {}
    assert names(worker("another kind")) == {}


@pytest.mark.parametrize(
    ("engine", "version", "is_used"),
    [
        ("sglang", "0.5.23", True),
        ("sglang", "0.5.11", True),
        ("sglang", "0.5.10.post1", False),
        ("sglang", None, False),
        ("vllm", None, True),
        ("trtllm", "1.0.0", True),
        ("openai", "1.0.0", False),
    ],
)
def test_salted_requests_go_only_where_salts_are_obeyed(
    engine: str, version: str | None, is_used: bool
) -> None:
    found = names(worker(engine, version), needs_salt=True)
    assert ("m" not in found) is is_used
    assert names(worker(engine, version)).keys() <= {"ad1"}, "without salts it does not matter"


def test_the_summary_is_short() -> None:
    many = replace(
        worker(), served=(BASE, *(replace(ADAPTER, name=f"a{i}", adapter=f"a{i}") for i in range(99)))
    )
    line = summary(Eligibility(ENGINES).unusable(many))
    assert line.startswith("a0, a1, a2, a3, a4, a5, a6, a7 and 91 more (sglang answers a request for an ")


# in a fleet --------------------------------------------------------------------------------------


def fleet(*workers: Worker, needs_salt: bool = False, **aliases: str) -> Fleet:
    made = Fleet(aliases, Eligibility(ENGINES, needs_salt=needs_salt))
    for one in workers:
        made.add(one)
    return made


def test_a_fleet_does_not_list_ineligible_adapters() -> None:
    some = fleet(worker())
    assert list(some.served()) == ["m"]
    assert [each.served.name for each in some.unusable(WorkerId("s:1"))] == ["ad1"]
    assert not some.is_ready("ad1") and some.is_ready("m")
    with pytest.raises(NotSupported) as caught:
        some.eligible("ad1")
    assert caught.value.message == (
        "'ad1' is an adapter, and the workers that have it would answer from its base model 'm' instead; "
        "choose another model"
    )
    assert (caught.value.param, caught.value.should_retry) == ("model", False)


def test_an_adapter_is_served_by_an_eligible_worker_alone() -> None:
    some = fleet(worker(), worker("vllm", name="v:1"))
    assert [each.member.worker.id for each in some.eligible("ad1")] == ["v:1"]
    assert not some.has_another("ad1", {WorkerId("v:1")})
    member = some.get(WorkerId("v:1"))
    assert member is not None
    member.is_up = False
    with pytest.raises(NoWorker, match="no worker that serves 'ad1' is up"):
        some.eligible("ad1")


def test_an_alias_of_an_ineligible_adapter_is_not_listed() -> None:
    some = fleet(worker(), fast="ad1")
    assert list(some.served()) == ["m"]
    with pytest.raises(NotSupported, match="'fast' is an adapter"):
        some.eligible("fast")
    salted = fleet(worker(version=None), needs_salt=True, fast="org/m")
    with pytest.raises(NotSupported, match="'fast' cannot keep the prompts of tenants apart"):
        salted.eligible("fast")


def test_adapters_loaded_later_are_judged_too() -> None:
    some = fleet(replace(worker(), served=(BASE,)))
    some.serve(WorkerId("s:1"), (BASE, ADAPTER))
    assert list(some.served()) == ["m"]
    some.serve(WorkerId("s:1"), (BASE,))
    assert some.unusable(WorkerId("s:1")) == ()
    some.add(worker())
    some.drop(WorkerId("s:1"))
    assert some.unusable(WorkerId("s:1")) == ()


def test_a_pair_with_an_ineligible_worker_is_excluded() -> None:
    bound = Transfer("bootstrap", "s:8998", is_bound=True)
    two = [
        replace(worker(name=name), role=role, transfer=bound)
        for name, role in (("p:1", Role.PREFILL), ("d:1", Role.DECODE))
    ]
    some = fleet(*two)
    assert some.has_prefills("m") and not some.has_prefills("ad1")
    assert some.is_bound("m") and not some.is_bound("ad1")
    old = fleet(*(replace(one, version="0.5.10") for one in two), needs_salt=True)
    assert not old.has_prefills("m") and list(old.served()) == []
    with pytest.raises(NotSupported, match="cannot keep the prompts of tenants apart"):
        old.eligible("m")
