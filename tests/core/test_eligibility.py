from dataclasses import replace

import pytest

from engines import ENGINES
from gateway.core.eligibility import Eligibility, UnusableCause, is_from, summary
from gateway.core.errors import InvalidRequest, NotSupported, NoWorker
from gateway.core.fleet import Fleet
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId

BASE, ADAPTER = ServedModel("m", "org/m"), ServedModel("ad1", "org/m", "ad1", parent="m")


def worker(engine: str = "sglang", version: str | None = "0.5.23", name: str = "s:1") -> Worker:
    return Worker(WorkerId(name), f"http://{name}", (BASE, ADAPTER), engine=engine, version=version)


def names(candidate: Worker, *, needs_salt: bool = False) -> dict[str, UnusableCause]:
    found = Eligibility(ENGINES, needs_salt=needs_salt).unusable(candidate)
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
    assert names(worker(engine, version)) == {}, "without salts it does not matter"


def test_an_unknown_engine_is_not_judged() -> None:
    assert names(worker("another kind"), needs_salt=True) == {}


def test_the_summary_is_short() -> None:
    many = replace(
        worker("openai"), served=(BASE, *(replace(ADAPTER, name=f"a{i}", adapter=f"a{i}") for i in range(99)))
    )
    line = summary(Eligibility(ENGINES, needs_salt=True).unusable(many))
    assert line.startswith("m, a0, a1, a2, a3, a4, a5, a6 and 92 more (openai has no cache_salt, which ")


# in a fleet --------------------------------------------------------------------------------------


def fleet(*workers: Worker, needs_salt: bool = False, **aliases: str) -> Fleet:
    made = Fleet(aliases, Eligibility(ENGINES, needs_salt=needs_salt))
    for candidate in workers:
        made.add(candidate)
    return made


def test_a_fleet_does_not_list_ineligible_models() -> None:
    some = fleet(worker(version="0.5.10"), needs_salt=True)
    assert list(some.served()) == []
    assert [each.served.name for each in some.unusable(WorkerId("s:1"))] == ["m", "ad1"]
    assert not some.is_ready("m")
    with pytest.raises(NotSupported) as caught:
        some.eligible("m")
    assert "'m' cannot isolate the cached prompts of tenants" in caught.value.message
    assert (caught.value.param, caught.value.should_retry) == ("model", False)


def test_a_model_is_served_by_an_eligible_worker_alone() -> None:
    some = fleet(worker(version="0.5.10"), worker("vllm", name="v:1"), needs_salt=True)
    assert [each.member.worker.id for each in some.eligible("m")] == ["v:1"]
    assert not some.has_another("m", {WorkerId("v:1")})
    member = some.get(WorkerId("v:1"))
    assert member is not None
    member.is_up = False
    with pytest.raises(NoWorker, match="no worker for 'm' is up"):
        some.eligible("m")


def test_an_alias_of_an_ineligible_model_is_not_listed() -> None:
    salted = fleet(worker(version=None), needs_salt=True, fast="org/m")
    with pytest.raises(NotSupported, match="'fast' cannot isolate the cached prompts of tenants"):
        salted.eligible("fast")


def test_models_loaded_later_are_judged_too() -> None:
    some = fleet(replace(worker(version=None), served=(BASE,)), needs_salt=True)
    some.serve(WorkerId("s:1"), (BASE, ADAPTER))
    assert [each.served.name for each in some.unusable(WorkerId("s:1"))] == ["m", "ad1"]
    some.drop(WorkerId("s:1"))
    assert some.unusable(WorkerId("s:1")) == ()


def test_a_pair_with_an_ineligible_worker_is_excluded() -> None:
    bound = Transfer("bootstrap", "s:8998", is_bound=True)
    second = [
        replace(worker(name=name), role=role, transfer=bound)
        for name, role in (("p:1", Role.PREFILL), ("d:1", Role.DECODE))
    ]
    assert fleet(*second).has_prefills("m") and fleet(*second).is_bound("m")
    old = fleet(*(replace(first, version="0.5.10") for first in second), needs_salt=True)
    assert not old.has_prefills("m") and list(old.served()) == []
    with pytest.raises(NotSupported, match="cannot isolate the cached prompts of tenants"):
        old.eligible("m")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/embeddings", "/v1/score", "/rerank"])
def test_a_route_that_drops_salts_reaches_no_worker(path: str) -> None:
    """SGLang's other routes obey them; a worker that obeys them everywhere gets the requests."""
    for needs_salt in (False, True):
        fleet = Fleet(eligibility=Eligibility(ENGINES, needs_salt=needs_salt))
        fleet.add(worker())
        obeyed = ("/v1/chat/completions", "/v1/completions", "/tokenize")
        assert [len(fleet.eligible("m", (), each)) for each in obeyed] == [1, 1, 1]
        if not needs_salt:
            assert len(fleet.eligible("m", (), path)) == 1
            continue
        with pytest.raises(NotSupported, match="cannot isolate the cached prompts of tenants on") as refused:
            fleet.eligible("m", (), path)
        assert "use a route of /v1/chat/completions, /v1/completions, /v1/responses" in str(refused.value)
        fleet.add(worker("vllm", "0.32.0", "v:1"))
        assert [each.member.worker.id for each in fleet.eligible("m", (), path)] == ["v:1"]


def test_an_adapter_is_reached_on_routes_that_obey_both() -> None:
    paths = frozenset({"/v1/completions", "/v1/messages", "/tokenize"})
    served = replace(ADAPTER, paths=paths)
    salted = Eligibility(ENGINES, needs_salt=True).reachable(worker(), served)
    assert salted == replace(served, paths=paths - {"/v1/messages"})
    assert Eligibility(ENGINES).reachable(worker(), served) == served
    assert Eligibility(ENGINES, needs_salt=True).reachable(worker("vllm"), served) == served


def test_lists_of_prompts_go_only_to_engines_that_take_them() -> None:
    alone, both = fleet(worker("mlx")), fleet(worker("mlx"), worker("vllm", name="v:1"))
    assert alone.has_text_only and both.has_text_only and not fleet(worker("vllm")).has_text_only
    left = both.taking_lists(both.eligible("m"), "m")
    assert [each.member.worker.id for each in left] == ["v:1"]
    with pytest.raises(InvalidRequest, match="accept one string as 'prompt'") as caught:
        alone.taking_lists(alone.eligible("m"), "m")
    assert (caught.value.status, caught.value.param) == (400, "prompt")
