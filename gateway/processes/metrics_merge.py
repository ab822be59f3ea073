"""One page of metrics from those of several processes, in Prometheus' text format.

    counter, histogram   added; of a process that is gone, what it had counted when last seen stays in
                         the sum, so that totals never go down
    gauge                what each process has of its own (`ADDED`) is added; otherwise all tell the same
                         truth, a worker's load or the index, and the most is taken; the least where "all
                         of them" is meant (`LEAST`)

The lines are those that our own processes write: a name, labels, a value, no timestamps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

ADDED = frozenset(
    {
        "kvgate_client_connections",
        "kvgate_tunnels",
        "kvgate_bodies_bytes",
        "kvgate_bodies_limit_bytes",
        "kvgate_retries_in_flight",
        "kvgate_queue_requests",
        "kvgate_queue_tokens",
        "kvgate_tenant_requests_in_flight",
        "kvgate_assumed_blocks",
        "kvgate_prefill_queue_requests",
        "kvgate_prefill_queue_tokens",
        "kvgate_prefill_pinned_blocks",
        "kvgate_prefill_pinned_tokens",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
LEAST = frozenset(
    {
        "kvgate_worker_up",
        "kvgate_prediction_exact_ratio",
        "kvgate_prediction_confidence_ratio",
        "process_start_time_seconds",
    }
)
_ADDED_KINDS = frozenset({"counter", "histogram"})


@dataclass(slots=True)
class Family:
    """A metric: its comment lines, its kind, and its samples by name and labels."""

    kind: str
    comments: list[str] = field(default_factory=list)
    samples: dict[str, float] = field(default_factory=dict)


Page = dict[str, Family]


def parse(text: str) -> Page:
    """By name, in the page's order. Raises ValueError for a line that is no sample."""
    page: Page = {}
    family = Family("untyped")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            family = page[name] = Family("untyped", [line])
        elif line.startswith("# TYPE "):
            family.kind = line.rpartition(" ")[2]
            family.comments.append(line)
        elif line:
            sample, _, value = line.rpartition(" ")
            family.samples[sample] = float(value)
    return page


def merge(pages: Iterable[Page]) -> Page:
    merged: Page = {}
    for page in pages:
        for name, family in page.items():
            into = merged.setdefault(name, Family(family.kind, family.comments))
            for sample, value in family.samples.items():
                before = into.samples.get(sample)
                into.samples[sample] = value if before is None else _both(name, family.kind, before, value)
    return merged


def totals(page: Page) -> Page:
    """What stays of a process that is gone."""
    return {name: family for name, family in page.items() if family.kind in _ADDED_KINDS}


def write(page: Page) -> str:
    return "".join(line + "\n" for family in page.values() for line in _lines(family))


def sum_of(page: Page, name: str) -> float:
    """Over all labels; 0 where there is no such metric."""
    family = page.get(name)
    return sum(family.samples.values()) if family else 0.0


def _both(name: str, kind: str, one: float, other: float) -> float:
    if kind in _ADDED_KINDS or name in ADDED:
        return one + other
    return min(one, other) if name in LEAST else max(one, other)


def _lines(family: Family) -> Iterator[str]:
    yield from family.comments
    for sample, value in family.samples.items():
        yield f"{sample} {value!r}" if value == value else f"{sample} NaN"
