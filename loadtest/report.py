"""Figures of a benchmark: a table for people, a JSON file for the next comparison."""

import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from loadtest.extent import IS_SMOKE

RESULTS = Path(__file__).parent / "results"
MEASURED_WITH = ("fastokens", "httptools", "msgspec", "pyzmq", "tokenizers", "uvloop", "xxhash")


@dataclass(frozen=True, slots=True)
class Figure:
    """Measured value of its rounds. `goal` is the most it may be (the least with `is_floor`), or None."""

    name: str
    value: float
    unit: str
    goal: float | None
    rounds: Sequence[float]
    is_floor: bool = False

    @property
    def verdict(self) -> str:
        if self.goal is None or IS_SMOKE:
            return ""
        is_met = self.value >= self.goal if self.is_floor else self.value <= self.goal
        return "met" if is_met else "MISSED"


def best_of(name: str, unit: str, goal: float | None, rounds: Sequence[float]) -> Figure:
    """Figure of the lowest round: machines are shared, and it is the least disturbed one."""
    return Figure(name, round(min(rounds), 3), unit, goal, [round(value, 3) for value in rounds])


def median_of(
    name: str, unit: str, goal: float | None, rounds: Sequence[float], *, is_floor: bool = False
) -> Figure:
    """Figure of the median round: for values that neighbours disturb little, or ratios of one run."""
    value = statistics.median(rounds)
    return Figure(name, round(value, 3), unit, goal, [round(value, 3) for value in rounds], is_floor)


def publish(bench: str, figures: Sequence[Figure]) -> None:
    """Print the table and write `results/<bench>.json`, but not of a smoke run."""
    width = max(len(figure.name) for figure in figures)
    print(f"\n{bench}\n{'figure':{width}}  {'value':>12} {'unit':8} {'goal':>10}  verdict   rounds")
    for figure in figures:
        goal = "" if figure.goal is None else f"{figure.goal:,g}"
        rounds = ", ".join(f"{value:,.4g}" for value in figure.rounds)
        row = f"{figure.name:{width}}  {figure.value:>12,.4g} {figure.unit:8} {goal:>10}"
        print(f"{row}  {figure.verdict:8}  {rounds}")
    if IS_SMOKE:
        print("a smoke run: it works; the figures mean nothing and are not written")
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench}.json"
    path.write_text(json.dumps(_document(bench, figures), indent=1) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _document(bench: str, figures: Sequence[Figure]) -> dict[str, object]:
    return {
        "bench": bench,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {_num_cores()} cores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in MEASURED_WITH},
        "figures": [asdict(figure) for figure in figures],
    }


def _commit() -> str:
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def _num_cores() -> int:
    import os

    return os.cpu_count() or 1
