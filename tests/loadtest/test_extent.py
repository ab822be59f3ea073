import os
import subprocess
import sys

import pytest

PRINT = "from loadtest.extent import extent; print(extent(1, 2, 3), extent(1, 2))"


@pytest.mark.parametrize(
    ("names", "values"),
    [((), "2 2"), (("SMOKE",), "1 1"), (("FULL",), "3 2"), (("SMOKE", "FULL"), "1 1")],
)
def test_the_environment_sets_the_extent(names: tuple[str, ...], values: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("SMOKE", "FULL")}
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        env=kept | dict.fromkeys(names, "1"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == values.split()
