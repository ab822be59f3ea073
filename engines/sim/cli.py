"""Command line of the simulated worker, `kvgate sim`."""

import sys
from collections.abc import Sequence

from engines.sim.config import add_flags, from_args
from engines.sim.worker import run
from gateway.core.arguments import CommandParser


def simulator_parser() -> CommandParser:
    """Parser of the simulated worker's command line."""
    parser = CommandParser(
        prog="kvgate sim",
        description="Simulate a vLLM worker without a model: its prefix cache, wire and API behaviour.",
    )
    add_flags(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code. `arguments` None: those of the process."""
    try:
        run(from_args(simulator_parser().parse_args(arguments)))
    except (ValueError, OSError) as exc:
        sys.stderr.write(f"kvgate sim: {exc}\n")
        return 1
    return 0
