"""Benchmark `make bench-day-one`: the product's promises for a first afternoon, as figures.

Each is a module of its own, with a `measure`; `--only auth` runs some of them, and writes nothing.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from loadtest import day_auth, day_clients, day_redaction, day_retries, day_timing, day_upgrades
from loadtest.extent import extent
from loadtest.instruments import BenchError, InstrumentError
from loadtest.report import Figure, publish

MODULES: Mapping[str, Callable[[], list[Figure]]] = {
    "auth": day_auth.measure,
    "timing": day_timing.measure,
    "upgrades": day_upgrades.measure,
    "retries": day_retries.measure,
    "redaction": day_redaction.measure,
    "clients": day_clients.measure,
}


SKIPPED = extent(("clients",), ())
"""Modules that a smoke run skips: it has no real engine; `tests/vllm/test_clients.py` makes the same
calls."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the modules. Returns 1 if a figure could not be measured, or a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench_day_one", description="The promises of a first day.")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(MODULES)}; nothing is written")
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else [name for name in MODULES if name not in SKIPPED]
    if unknown := set(names) - MODULES.keys():
        parser.error(f"no figures are called {', '.join(sorted(unknown))}")
    found: list[Figure] = []
    for name in names:
        try:
            found += MODULES[name]()
        except (InstrumentError, BenchError, TimeoutError) as exc:
            print(f"bench-day-one: {name}: {exc}", file=sys.stderr)
            return 1
    if args.only:  # a part must not take the place of the whole on file
        for figure in found:
            print(f"{figure.name}: {figure.value:,.3f} {figure.unit} {figure.verdict}")
    else:
        publish("bench-day-one", found)
    return 1 if any(figure.verdict == "MISSED" for figure in found) else 0


if __name__ == "__main__":
    sys.exit(main())
