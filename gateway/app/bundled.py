"""Files that come with the simulated engine."""

from collections.abc import Sequence
from pathlib import Path


def simulate(arguments: Sequence[str]) -> int:
    """`kvgate sim`: the simulated engine in this process."""
    from engines.sim.cli import main

    return main(arguments)


def bundled_tokenizer() -> Path:
    """The small tokenizer that comes with the simulated engine."""
    import engines

    return Path(engines.__file__).parent / "sim" / "tokenizer"
