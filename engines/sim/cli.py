"""Command line of the simulated worker, `kvgate sim`."""

import argparse
import sys
from collections.abc import Sequence

from engines.sim.config import add_flags, from_args
from engines.sim.worker import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code. `arguments` None: those of the process."""
    parser = argparse.ArgumentParser(
        prog="kvgate sim",
        description="Simulate a vLLM worker without a model: its prefix cache, wire and API behaviour.",
    )
    add_flags(parser)
    try:
        run(from_args(parser.parse_args(arguments)))
    except (ValueError, OSError) as exc:
        sys.stderr.write(f"kvgate sim: {exc}\n")
        return 1
    return 0
