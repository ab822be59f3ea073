"""Late workers of a model: when they get requests, and which of them."""

from dataclasses import dataclass

import pytest

from gateway.core.panic import LateWorkers, admitted
from gateway.core.worker import WorkerId


@dataclass(frozen=True)
class Id:
    id: WorkerId


@dataclass
class Fake:
    """A worker's health, by one letter in the tests."""

    worker: Id
    is_up: bool = True
    is_late: bool = False
    is_accepting: bool = True
    is_draining: bool = False
    ejected: str | None = None


KINDS = {
    "U": {},
    "l": {"is_late": True},  # late, and other signs of life come
    "L": {"is_up": False, "is_late": True},
    "S": {"is_up": False, "is_late": True, "is_accepting": False},
    "R": {"is_up": False},
    "D": {"is_draining": True},
    "E": {"ejected": "failures"},
}


def fleet(kinds: str) -> list[Fake]:
    return [
        Fake(Id(WorkerId(f"{kind}{at}")), **KINDS[kind])  # type: ignore[arg-type]
        for at, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "percent", "who"),
    [
        ("UU", 50, ""),
        ("UL", 50, ""),  # half are healthy: not fewer
        ("ULL", 50, "L1 L2"),
        ("L", 50, "L0"),
        ("LL", 50, "L0 L1"),
        ("LR", 50, "L0"),  # a worker that refuses says so itself
        ("RR", 50, ""),
        ("USS", 50, ""),  # two hosts are gone: no request waits for them while another worker answers
        ("ULS", 50, "L1"),
        ("SS", 50, "S0 S1"),  # nothing else is left
        ("LS", 50, "L0"),
        ("lLL", 50, "L1 L2"),
        ("llL", 50, ""),
        ("DL", 50, "L1"),
        ("UEL", 50, "L2"),
        ("UUL", 100, "L2"),
        ("ULLL", 20, ""),
        ("LLL", 0, ""),
    ],
)
def test_late_workers_get_requests_below_the_threshold(kinds: str, percent: float, who: str) -> None:
    assert " ".join(each.worker.id for each in admitted(fleet(kinds), percent)) == who


def test_only_models_in_panic_are_listed_and_both_tables_are_looked_at() -> None:
    late, one, two = LateWorkers(), fleet("ULL"), fleet("UU")
    assert late.is_empty
    for each in one[1:]:
        late.note(each.worker.id, is_down=True)
    late.admit([("m", one), ("n", two)], [("m", two), ("p", one)])
    assert (set(late.answering), set(late.prefilling)) == ({"m"}, {"p"})
    assert late.in_panic == {"m": {"L1", "L2"}, "p": {"L1", "L2"}}
    assert "panic=['m', 'p']" in repr(late)
    for each in one[1:]:
        late.note(each.worker.id, is_down=False)
    late.admit([("m", one)], [])
    assert late.is_empty and not late.in_panic
