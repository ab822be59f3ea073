"""Merges one page of metrics from those of several processes, in Prometheus's text format.

    counter, histogram   added; the last values of a process that has ended stay in the sum, so that totals
                         never go down
    gauge                merged as its declaration says (`observability/metric_spec.py`): the sum where each
                         process counts its own, else the highest or the lowest value
    other metrics        counters and histograms are added, of gauges the highest value is taken

A line that our own processes write has a name, labels and a value, and no timestamp.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.observability.metric_spec import Merge
from gateway.processes.metric_reference import SPECS

MERGES: Mapping[str, Merge] = {
    **{spec.name: spec.merge for spec in SPECS},
    "process_virtual_memory_bytes": Merge.SUM,
    "process_resident_memory_bytes": Merge.SUM,
    "process_open_fds": Merge.SUM,
    "process_start_time_seconds": Merge.MIN,
}
_COUNTING = frozenset({"counter", "histogram"})


@dataclass(slots=True)
class Family:
    """A metric: its comment lines, its kind, and its samples by name and labels."""

    kind: str
    comments: list[str] = field(default_factory=list)
    samples: dict[str, float] = field(default_factory=dict)


Page = dict[str, Family]


def parse(text: str) -> Page:
    """Parse a page into families by name, in its order. Raises ValueError for a line that is no sample."""
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
    """The families of an ended process that stay in the merged page."""
    return {name: family for name, family in page.items() if family.kind in _COUNTING}


def write(page: Page) -> str:
    return "".join(line + "\n" for family in page.values() for line in _lines(family))


def sum_of(page: Page, name: str) -> float:
    """Over all labels; 0 where there is no such metric."""
    family = page.get(name)
    return sum(family.samples.values()) if family else 0.0


def _both(name: str, kind: str, one: float, other: float) -> float:
    merge = MERGES.get(name) or (Merge.SUM if kind in _COUNTING else Merge.MAX)
    if merge is Merge.SUM:
        return one + other
    return min(one, other) if merge is Merge.MIN else max(one, other)


def _lines(family: Family) -> Iterator[str]:
    yield from family.comments
    for sample, value in family.samples.items():
        yield f"{sample} {value!r}" if value == value else f"{sample} NaN"
