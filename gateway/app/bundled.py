"""The simulated engine, and the files that come with it."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def simulate(arguments: Sequence[str]) -> int:
    """`kvgate sim`: the simulated engine in this process."""
    from engines.sim.cli import main

    return main(arguments)


def simulator_parser() -> argparse.ArgumentParser:
    """Parser of `kvgate sim`."""
    from engines.sim import cli

    return cli.simulator_parser()


def bundled_tokenizer() -> Path:
    """The small tokenizer that comes with the simulated engine."""
    import engines

    return Path(engines.__file__).parent / "sim" / "tokenizer"
