"""Benchmark `make bench-hostile`: the harm that attackers can do to a gateway, and to others' requests, as
figures.

Each is a module of its own, with a `measure`; `--only leaks` runs some of them, and writes nothing. FULL=1
takes the promised counts, SMOKE=1 a few, which proves that all of it runs and no more.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from loadtest.report import Figure, publish

MODULES: tuple[str, ...] = ("body", "events", "nested", "leaks")
"""Modules `loadtest.hostile_<name>`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the modules. Returns 1 if a figure could not be measured, or a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench_hostile", description="A gateway under attack.")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(MODULES)}; nothing is written")
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else list(MODULES)
    if unknown := set(names) - set(MODULES):
        parser.error(f"no figures are called {', '.join(sorted(unknown))}")
    found: list[Figure] = []
    for name in names:
        try:
            found += importlib.import_module(f"loadtest.hostile_{name}").measure()
        except (RuntimeError, TimeoutError, OSError) as exc:
            print(f"bench-hostile: {name}: {exc}", file=sys.stderr)
            return 1
    if args.only:  # a part must not take the place of the whole on file
        for figure in found:
            print(f"{figure.name}: {figure.value:,.3f} {figure.unit} {figure.verdict}")
    else:
        publish("bench-hostile", found)
    return 1 if any(figure.verdict == "MISSED" for figure in found) else 0


if __name__ == "__main__":
    sys.exit(main())
