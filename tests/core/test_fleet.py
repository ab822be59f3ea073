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
