"""Panic threshold: late workers of a model that get requests since too few others are healthy. Pure.

    enough workers are healthy       a worker with late probes and no other sign of life gets no requests
    fewer than the threshold         late workers that accept connections get requests as healthy ones do
    none at all, and none accepts    each late worker gets requests: one may answer

Late is a worker with probes that time out. One that refuses connections, or answers its probes with an error,
reports so itself: it gets no requests here either.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from gateway.core.worker import WorkerId


class Health(Protocol):
    """Health of a worker, as `core/fleet.py` has it."""

    is_up: bool
    is_late: bool
    is_accepting: bool
    is_draining: bool
    ejected: str | None


SomeHealth = TypeVar("SomeHealth", bound=Health)


def admitted(workers: Iterable[SomeHealth], percent: float) -> list[SomeHealth]:
    """Return the late workers of one model that get requests, below a threshold of `percent` healthy
    workers; 0 admits none."""
    staying = [worker for worker in workers if not worker.is_draining]
    late = [worker for worker in staying if worker.is_late and not worker.is_up]
    num_healthy = sum([worker.is_up and worker.ejected is None for worker in staying])
    if not late or 100.0 * num_healthy >= percent * len(staying):
        return []
    accepting = [worker for worker in late if worker.is_accepting]
    is_alone = not any([worker.is_up for worker in staying])
    return accepting or (late if is_alone else [])


class Identified(Protocol):
    @property
    def id(self) -> WorkerId: ...


class Late(Health, Protocol):
    @property
    def worker(self) -> Identified: ...


NO_WORKERS: Final[frozenset[WorkerId]] = frozenset()
ByModel = Iterable[tuple[str, Sequence[Late]]]


class LateWorkers:
    """Late workers of a fleet, and those of them that get requests. `answering` and `prefilling` have these
    by model, and only models in panic; both are empty in a healthy fleet, and no decision looks further."""

    def __init__(self, percent: float = 50.0) -> None:
        self.percent = percent
        self.answering: dict[str, frozenset[WorkerId]] = {}
        self.prefilling: dict[str, frozenset[WorkerId]] = {}
        self._down: set[WorkerId] = set()

    def __repr__(self) -> str:
        return f"LateWorkers({sorted(self._down)}, panic={sorted(self.in_panic)})"

    @property
    def in_panic(self) -> dict[str, frozenset[WorkerId]]:
        """Models with too few healthy workers, and their late ones that get requests all the same."""
        both = {**self.answering, **self.prefilling}
        return {model: self.answering.get(model, NO_WORKERS) | late for model, late in both.items()}

    @property
    def is_empty(self) -> bool:
        return not (self._down or self.answering or self.prefilling)

    def note(self, worker: WorkerId, *, is_down: bool) -> None:
        """Note that a worker is down since its probes time out, or that it is not."""
        if is_down:
            self._down.add(worker)
        else:
            self._down.discard(worker)

    def admit(self, answering: ByModel, prefilling: ByModel) -> None:
        """Find the models in panic, among all workers that answer, and that prefill, for each model."""
        self.answering, self.prefilling = self._admitted(answering), self._admitted(prefilling)

    def _admitted(self, by_model: ByModel) -> dict[str, frozenset[WorkerId]]:
        return {
            model: late
            for model, workers in by_model
            if any([each.worker.id in self._down for each in workers])
            and (late := frozenset([each.worker.id for each in admitted(workers, self.percent)]))
        }
