from dataclasses import replace

import pytest

from gateway.core.errors import NotSupported, NoWorker, UnknownModel
from gateway.core.fleet import MAX_GROUPS, Fleet
from gateway.core.slow_start import SlowStart
from gateway.core.spelling import MAX_NAMED
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId


def worker(name: str, *models: str) -> Worker:
    return Worker(WorkerId(name), f"http://{name}", tuple(ServedModel(m, m) for m in models))


def ids(fleet: Fleet, model: str, **kw: object) -> list[str]:
    return sorted(e.member.worker.id for e in fleet.eligible(model, **kw))  # type: ignore[arg-type]


def test_workers_that_are_up_and_serve_the_model_are_eligible() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", "m", "org/n"))
    fleet.add(worker("b:1", "m"))
    assert ids(fleet, "m") == ["a:1", "b:1"]
    assert ids(fleet, "org/n") == ["a:1"]
    assert ids(fleet, "m", exclude={"a:1"}) == ["b:1"]
    assert sorted(fleet.served()) == ["m", "org/n"]


def test_the_served_names_are_made_once_until_the_fleet_changes() -> None:
    fleet = Fleet({"alias": "m"})
    fleet.add(worker("a:1", "m"))
    served = fleet.served()
    assert list(served) == ["alias", "m"] and fleet.served() is served
    fleet.add(worker("b:1", "n"))
    assert list(fleet.served()) == ["alias", "m", "n"]
    fleet.drop(WorkerId("b:1"))
    assert fleet.served() == served


def test_an_unknown_model_lists_the_known_ones() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", "m", "n"))
    with pytest.raises(UnknownModel, match="'x' does not exist; known: m, n"):
        fleet.eligible("x")


def test_an_unknown_model_lists_some_of_thousands() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", *(f"m{number}" for number in range(4096))))
    with pytest.raises(UnknownModel, match=f"and {4096 - MAX_NAMED} more$"):
        fleet.eligible("x")


def test_a_prompt_is_hashed_for_a_few_groups_of_workers() -> None:
    """Groups of workers that joined before are kept; the count is per name."""
    fleet = Fleet()
    for size in (*range(1, MAX_GROUPS + 10), 1):
        fleet.add(replace(worker(f"w:{len(fleet)}", "m"), block_size=size))
    fleet.add(replace(worker("other:1", "n"), block_size=999))
    sizes = [e.group.block_size for e in fleet.eligible("m")]
    assert sizes == [*range(1, MAX_GROUPS + 1), *[0] * 9, 1]
    assert [e.group.block_size for e in fleet.eligible("n")] == [999]


def test_without_a_worker_up_the_error_is_retryable() -> None:
    fleet = Fleet()
    with pytest.raises(NoWorker):
        fleet.eligible("m")
    fleet.add(worker("a:1", "m")).is_up = False
    with pytest.raises(NoWorker) as caught:
        fleet.eligible("m")
    assert caught.value.retry_after_s


@pytest.mark.parametrize("role", [Role.BOTH, Role.PREFILL])
def test_late_workers_are_eligible_below_the_panic_threshold(role: Role) -> None:
    fleet = Fleet()
    for name in "abc":
        fleet.add(replace(worker(name, "m"), role=role, transfer=Transfer("nixl")))
    fleet.add(replace(worker("d", "m"), role=Role.DECODE, transfer=Transfer("nixl")))

    def left() -> list[str]:
        some = fleet.prefills("m") if role is Role.PREFILL else fleet.eligible("m", exclude=[WorkerId("d")])
        return [each.member.worker.id for each in some]

    fleet.set_up(WorkerId("a"), False, is_late=True)
    assert left() == ["b", "c"]
    fleet.set_up(WorkerId("b"), False, is_late=True)
    fleet.set_up(WorkerId("d"), False, is_late=True)
    assert left() == ["a", "b", "c"]
    assert fleet.is_ready("m") and set(fleet.late.in_panic) == {"m"}
    fleet.drain(WorkerId("c"), True)
    assert left() == ["a", "b"]
    fleet.set_up(WorkerId("a"), False)  # it refuses
    assert left() == ["b"]
    fleet.drop(WorkerId("b"))
    fleet.set_up(WorkerId("d"), True)
    assert fleet.late.in_panic == {} and fleet.late.is_empty


def test_readiness_follows_late_workers_that_get_requests() -> None:
    fleet = Fleet()
    for name in "ab":
        fleet.add(worker(name, "m"))
        fleet.set_up(WorkerId(name), False, is_late=True)
    assert fleet.is_ready(None) and fleet.is_ready("m") and not fleet.is_ready("n")
    assert fleet.has_another("m", [WorkerId("a")])
    assert not fleet.has_another("m", [WorkerId("a")], is_up=True)
    fleet.late.percent = 0.0
    fleet.set_up(WorkerId("a"), False, is_late=True)
    assert not fleet.is_ready(None)


def test_ready_is_per_model() -> None:
    fleet = Fleet()
    assert not fleet.is_ready(None)
    fleet.add(worker("a:1", "m"))
    fleet.add(worker("b:1", "n")).is_up = False
    assert (fleet.is_ready(None), fleet.is_ready("m"), fleet.is_ready("n"), fleet.is_ready("x")) == (
        True,
        True,
        False,
        False,
    )


def test_a_dropped_worker_takes_its_models_along() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", "m"))
    fleet.add(worker("b:1", "n"))
    fleet.drop(WorkerId("a:1"))
    fleet.drop(WorkerId("a:1"))
    assert list(fleet.served()) == ["n"]
    assert fleet.get(WorkerId("a:1")) is None
    assert "1 of 1 up" in repr(fleet)


# excluded workers ------------------------------------------------------------------------------------


def three() -> Fleet:
    fleet = Fleet()
    for name in "abc":
        fleet.add(worker(f"{name}:1", "m"))
    return fleet


A, B, C = map(WorkerId, ("a:1", "b:1", "c:1"))


def state(fleet: Fleet, name: WorkerId) -> str:
    member = fleet.get(name)
    assert member is not None
    return member.state


def test_a_draining_worker_is_excluded_until_its_drain_ends() -> None:
    fleet = three()
    fleet.drain(A, True)
    assert (ids(fleet, "m"), state(fleet, A)) == (["b:1", "c:1"], "draining")
    fleet.drain(A, False)
    assert (ids(fleet, "m"), state(fleet, A)) == (["a:1", "b:1", "c:1"], "active")


def test_where_all_workers_drain_none_is_eligible_and_the_error_says_so() -> None:
    fleet = three()
    for name in (A, B, C):
        fleet.drain(name, True)
    with pytest.raises(NoWorker, match="no worker for 'm' is up; the others are draining"):
        fleet.eligible("m")
    assert (fleet.is_ready(None), fleet.is_ready("m"), fleet.has_another("m", ())) == (False, False, False)


def test_an_ejected_worker_is_excluded_while_another_is_eligible() -> None:
    fleet = three()
    fleet.eject(A, "it failed")
    assert (ids(fleet, "m"), state(fleet, A)) == (["b:1", "c:1"], "ejected")
    assert ids(fleet, "m", exclude={B, C}) == ["a:1"]
    for name in (B, C):
        member = fleet.get(name)
        assert member is not None
        member.is_up = False
    assert (ids(fleet, "m"), state(fleet, B)) == (["a:1"], "down")


def test_a_busy_worker_is_excluded_while_another_is_eligible() -> None:
    fleet = three()
    fleet.set_busy(A, True)
    assert (ids(fleet, "m"), state(fleet, A)) == (["b:1", "c:1"], "active")
    assert ids(fleet, "m", exclude={B, C}) == ["a:1"]
    assert fleet.has_another("m", {B, C})
    fleet.eject(B, "it failed")
    fleet.set_busy(C, True)
    assert ids(fleet, "m") == ["a:1", "c:1"], "saturated workers rather than a failing one"
    fleet.set_busy(A, False)
    assert ids(fleet, "m") == ["a:1"]
    fleet.set_busy(C, False)
    fleet.eject(B, None)
    assert ids(fleet, "m") == ["a:1", "b:1", "c:1"]
    fleet.set_busy(WorkerId("gone:1"), True)


def test_the_last_worker_of_a_model_is_recognized() -> None:
    fleet = three()
    assert fleet.is_last(A) is None
    fleet.drain(B, True)
    fleet.eject(C, "it failed")
    assert fleet.is_last(A) == "m"


def test_the_last_prefill_worker_is_recognized() -> None:
    fleet = Fleet()
    for name, role in (("p:1", Role.PREFILL), ("d:1", Role.DECODE), ("d:2", Role.DECODE)):
        either = worker(name, "m")
        fleet.add(replace(either, role=role, transfer=Transfer("nixl")))
    assert (fleet.is_last(WorkerId("p:1")), fleet.is_last(WorkerId("d:1"))) == ("m", None)
    fleet.drain(WorkerId("p:1"), True)
    assert fleet.prefills("m") == []


def test_a_warming_worker_is_eligible_when_it_is_due() -> None:
    fleet, slow_start = three(), SlowStart(0.0, 10.0)
    fleet.set_slow_start(A, slow_start)
    assert (ids(fleet, "m"), state(fleet, A)) == (["a:1", "b:1", "c:1"], "slow_start")
    slow_start.credit = 0.5
    assert ids(fleet, "m") == ["b:1", "c:1"]
    assert ids(fleet, "m", exclude={B, C}) == ["a:1"]
    fleet.set_slow_start(A, None)
    assert (ids(fleet, "m"), state(fleet, A)) == (["a:1", "b:1", "c:1"], "active")


def test_where_all_workers_warm_up_they_share_equally() -> None:
    fleet = three()
    for name in (A, B, C):
        fleet.set_slow_start(name, SlowStart(0.0, 10.0))
        member = fleet.get(name)
        assert member is not None and member.slow_start is not None
        member.slow_start.credit = 0.0
    assert ids(fleet, "m") == ["a:1", "b:1", "c:1"]


def test_a_worker_that_joins_again_begins_a_new_lifecycle() -> None:
    fleet = three()
    fleet.eject(A, "it failed")
    fleet.add(worker("a:1", "m"))
    assert ids(fleet, "m") == ["a:1", "b:1", "c:1"]


# aliases ---------------------------------------------------------------------------------------


def of_root(name: str, *served: ServedModel) -> Worker:
    return Worker(WorkerId(name), f"http://{name}", served, block_size=16)


def test_an_alias_leads_to_all_workers_of_the_root_under_their_own_names() -> None:
    fleet = Fleet({"gpt-4": "org/name"})
    first, second = of_root("a:1", ServedModel("m", "org/name")), of_root("b:1", ServedModel("n", "org/name"))
    for each in (first, second, of_root("c:1", ServedModel("x", "other"))):
        fleet.add(each)
    assert ids(fleet, "gpt-4") == ["a:1", "b:1"]
    assert [fleet.name_at(each, "gpt-4") for each in (first, second)] == ["m", "n"]
    assert fleet.name_at(first, "m") == "m"
    assert list(fleet.served()) == ["gpt-4", "m", "n", "x"]
    assert fleet.is_ready("gpt-4")


def test_an_alias_may_stand_for_a_served_name_or_an_adapter() -> None:
    fleet = Fleet({"a1": "m", "a2": "lora", "a3": "nothing"})
    fleet.add(
        both := of_root(
            "a:1", ServedModel("m", "r"), ServedModel("m2", "r"), ServedModel("lora", "r", "lora")
        )
    )
    assert [fleet.name_at(both, alias) for alias in ("a1", "a2")] == ["m", "lora"]
    assert [e.group.adapter for e in fleet.eligible("a2")] == ["lora"]
    assert len(fleet.eligible("a1")) == 1
    with pytest.raises(UnknownModel):
        fleet.eligible("a3")


def test_a_worker_with_several_names_of_the_root_is_one_candidate() -> None:
    fleet = Fleet({"alias": "r"})
    fleet.add(of_root("a:1", ServedModel("m", "r"), ServedModel("m2", "r")))
    assert len(fleet.eligible("alias")) == 1


def test_a_served_name_overrides_an_alias() -> None:
    fleet = Fleet({"n": "m"})
    fleet.add(of_root("a:1", ServedModel("m", "r")))
    fleet.add(other := of_root("b:1", ServedModel("n", "s")))
    assert ids(fleet, "n") == ["b:1"]
    assert fleet.name_at(other, "n") == "n"
    fleet.drop(WorkerId("b:1"))
    assert ids(fleet, "n") == ["a:1"]


def test_a_worker_set_apart_has_no_block_size() -> None:
    fleet = Fleet()
    for name in ("a:1", "b:1"):
        fleet.add(of_root(name, ServedModel("m", "r"), ServedModel("lora", "r", "lora")))
    fleet.set_apart({(WorkerId("b:1"), "r")})
    for model in ("m", "lora"):
        assert [(e.group.block_size, e.is_apart) for e in fleet.eligible(model)] == [(16, False), (0, True)]
    fleet.set_apart(frozenset())
    assert [e.group.block_size for e in fleet.eligible("m")] == [16, 16]


def test_models_are_indexed_once_per_batch() -> None:
    fleet = Fleet()
    with fleet.batch():
        with fleet.batch():
            fleet.add(worker("a:1", "m"))
        fleet.add(worker("b:1", "m", "n"))
        fleet.drop(WorkerId("a:1"))
        fleet.serve(WorkerId("b:1"), (ServedModel("o", "o"),))
        assert not fleet.served(), "as before the batch"
    assert ids(fleet, "o") == ["b:1"]
    assert list(fleet.served()) == ["o"]


def test_a_batch_that_fails_keeps_its_changes() -> None:
    fleet = Fleet()
    with pytest.raises(ZeroDivisionError), fleet.batch():
        fleet.add(worker("a:1", "m"))
        raise ZeroDivisionError
    assert ids(fleet, "m") == ["a:1"]


# adapters under names of the worker's own --------------------------------------------------------

BASE = ServedModel("m", "org/m")
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
NAMED = ServedModel("ad1", "org/m", "ad1", None, "m", "m:ad1", frozenset({CHAT}))


def mixed(*engines: ServedModel, **aliases: str) -> Fleet:
    fleet = Fleet(aliases)
    for number, adapter in enumerate(engines):
        fleet.add(Worker(WorkerId(f"w:{number}"), f"http://w:{number}", (BASE, adapter)))
    return fleet


def test_a_worker_is_asked_by_the_name_that_it_obeys() -> None:
    fleet = mixed(NAMED, replace(NAMED, called=None, paths=None), fast="ad1", plain="m")
    named, other = (member.worker for member in fleet)
    for name in ("ad1", "fast"):
        assert (fleet.name_at(named, name), fleet.name_at(other, name)) == ("m:ad1", "ad1")
    assert (fleet.name_at(named, "m"), fleet.name_at(named, "plain")) == ("m", "m")
    assert [fleet.is_translated(name) for name in ("ad1", "fast", "plain", "m")] == [True, True, True, False]
    fleet.drop(named.id)
    assert not fleet.is_translated("ad1")


def test_a_route_that_the_base_would_answer_is_another_workers() -> None:
    fleet = mixed(NAMED, replace(NAMED, called=None, paths=None), fast="ad1")
    assert ids(fleet, "ad1", path=CHAT) == ids(fleet, "ad1") == ["w:0", "w:1"]
    assert ids(fleet, "ad1", path=RESPONSES) == ids(fleet, "fast", path=RESPONSES) == ["w:1"]
    assert ids(fleet, "m", path=RESPONSES) == ["w:0", "w:1"]
    assert fleet.has_another("ad1", {"w:1"}, CHAT) and not fleet.has_another("ad1", {"w:1"}, RESPONSES)
    fleet.drop(WorkerId("w:1"))
    with pytest.raises(NotSupported) as caught:
        fleet.eligible("ad1", path=RESPONSES)
    assert caught.value.message == (
        "/v1/responses cannot reach the adapter 'ad1': the workers that have it answer there from its base "
        "model 'm'; use a route of /v1/chat/completions"
    )


@pytest.mark.parametrize(
    ("model", "adapter", "expected"),
    [
        ("m", "ad1", "ad1"),
        ("org/m", "ad1", "ad1"),
        ("plain", "ad1", "ad1"),
        ("ad1", "ad1", "ad1"),
        ("", "ad1", "ad1"),
        (":ad1", None, None),
        ("n", "ad1", None),
        ("m", "m", None),
        ("m", "nix", None),
        ("m:ad1", None, "ad1"),
        ("org/m:ad1", None, "ad1"),
        ("plain:ad1", None, "ad1"),
        ("n:ad1", None, None),
        ("m:nix", None, None),
        ("m:", None, None),
        ("m", None, None),
        ("a:b:c", None, None),
    ],
)
def test_an_adapter_beside_or_behind_its_base(model: str, adapter: str | None, expected: str | None) -> None:
    assert mixed(NAMED, plain="m").adapter_of(model, adapter) == expected


def test_names_may_have_colons() -> None:
    fleet = Fleet()
    adapter = ServedModel("v2:ad", "s3://m:v1", "v2:ad", None, "s3://m:v1")
    fleet.add(Worker(WorkerId("w:1"), "http://w:1", (ServedModel("s3://m:v1", "s3://m:v1"), adapter)))
    assert fleet.adapter_of("s3://m:v1:v2:ad", None) == "v2:ad"


def test_a_worker_gets_another_block_size_and_keeps_its_state() -> None:
    fleet = Fleet()
    fleet.add(Worker(WorkerId("a:1"), "http://a:1", (ServedModel("m", "m"),))).num_failures = 3
    assert next(iter(fleet.eligible("m"))).group.block_size == 0
    worker = fleet.resize(WorkerId("a:1"), 16)
    assert worker is not None
    assert worker.block_size == 16
    (eligible,) = fleet.eligible("m")
    assert (eligible.group.block_size, eligible.member.num_failures) == (16, 3)
    assert fleet.resize(WorkerId("gone"), 16) is None
