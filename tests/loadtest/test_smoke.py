"""Each benchmark for seconds, the soak test for a minute: their code runs, their figures mean nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = re.findall(r"^(bench[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
PROGRAMS = ["soak", *(target for target in TARGETS if target != "bench-smoke")]


@pytest.mark.smoke
@pytest.mark.parametrize("target", PROGRAMS)
def test_program_runs_to_its_end(target: str) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=ROOT,
        env=os.environ | {"SMOKE": "1", "MINUTES": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
