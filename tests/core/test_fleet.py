import pytest

from gateway.core.errors import NoWorker, UnknownModel
from gateway.core.fleet import Fleet
from gateway.core.worker import Served, Worker, WorkerId


def worker(name: str, *models: str) -> Worker:
    return Worker(WorkerId(name), f"http://{name}", tuple(Served(m, m) for m in models))


def ids(fleet: Fleet, model: str, **kw: object) -> list[str]:
    return sorted(e.member.worker.id for e in fleet.eligible(model, **kw))  # type: ignore[arg-type]


def test_eligible_are_those_that_are_up_and_serve_the_model() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", "m", "org/n"))
    fleet.add(worker("b:1", "m"))
    assert ids(fleet, "m") == ["a:1", "b:1"]
    assert ids(fleet, "org/n") == ["a:1"]
    assert ids(fleet, "m", exclude={"a:1"}) == ["b:1"]
    assert sorted(fleet.served()) == ["m", "org/n"]


def test_an_unknown_model_lists_the_known_ones() -> None:
    fleet = Fleet()
    fleet.add(worker("a:1", "m", "n"))
    with pytest.raises(UnknownModel, match="'x' does not exist; known: m, n"):
        fleet.eligible("x")


def test_no_worker_up_is_worth_a_retry() -> None:
    fleet = Fleet()
    with pytest.raises(NoWorker):
        fleet.eligible("m")
    fleet.add(worker("a:1", "m")).is_up = False
    with pytest.raises(NoWorker) as caught:
        fleet.eligible("m")
    assert caught.value.retry_after_s


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


# other names -----------------------------------------------------------------------------------


def of_root(name: str, *served: Served) -> Worker:
    return Worker(WorkerId(name), f"http://{name}", served, block_size=16)


def test_an_alias_goes_to_all_workers_of_the_root_whatever_they_call_it() -> None:
    fleet = Fleet({"gpt-4": "org/name"})
    one, other = of_root("a:1", Served("m", "org/name")), of_root("b:1", Served("n", "org/name"))
    for each in (one, other, of_root("c:1", Served("x", "other"))):
        fleet.add(each)
    assert ids(fleet, "gpt-4") == ["a:1", "b:1"]
    assert [fleet.name_at(each, "gpt-4") for each in (one, other)] == ["m", "n"]
    assert fleet.name_at(one, "m") == "m"
    assert list(fleet.served()) == ["gpt-4", "m", "n", "x"]
    assert fleet.is_ready("gpt-4")


def test_an_alias_may_stand_for_a_served_name_or_an_adapter() -> None:
    fleet = Fleet({"a1": "m", "a2": "lora", "a3": "nothing"})
    fleet.add(both := of_root("a:1", Served("m", "r"), Served("m2", "r"), Served("lora", "r", "lora")))
    assert [fleet.name_at(both, alias) for alias in ("a1", "a2")] == ["m", "lora"]
    assert [e.group.adapter for e in fleet.eligible("a2")] == ["lora"]
    assert len(fleet.eligible("a1")) == 1
    with pytest.raises(UnknownModel):
        fleet.eligible("a3")


def test_a_worker_that_serves_the_root_by_several_names_is_one_candidate() -> None:
    fleet = Fleet({"alias": "r"})
    fleet.add(of_root("a:1", Served("m", "r"), Served("m2", "r")))
    assert len(fleet.eligible("alias")) == 1


def test_a_name_that_a_worker_serves_itself_is_no_alias() -> None:
    fleet = Fleet({"n": "m"})
    fleet.add(of_root("a:1", Served("m", "r")))
    fleet.add(other := of_root("b:1", Served("n", "s")))
    assert ids(fleet, "n") == ["b:1"]
    assert fleet.name_at(other, "n") == "n"
    fleet.drop(WorkerId("b:1"))
    assert ids(fleet, "n") == ["a:1"]


def test_nothing_is_looked_up_for_a_worker_that_is_apart() -> None:
    fleet = Fleet()
    for name in ("a:1", "b:1"):
        fleet.add(of_root(name, Served("m", "r"), Served("lora", "r", "lora")))
    fleet.set_apart({(WorkerId("b:1"), "r")})
    for model in ("m", "lora"):
        assert [(e.group.block_size, e.is_apart) for e in fleet.eligible(model)] == [(16, False), (0, True)]
    fleet.set_apart(frozenset())
    assert [e.group.block_size for e in fleet.eligible("m")] == [16, 16]
