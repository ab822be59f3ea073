"""The test that each wheel of a release has to pass, on the wheel of this run."""

import subprocess
from pathlib import Path

from tests import ROOT
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience


def test_it_passes_for_a_compiled_wheel_only(wheel: Path, python: Path, tmp_path: Path) -> None:
    command = [str(python), "-P", str(ROOT / "tests/wheel/smoke.py")]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=patience(120)
    )
    if wheel.name.endswith("-none-any.whl"):
        assert done.returncode == 1 and "is not compiled" in done.stderr
    else:
        assert done.returncode == 0 and "is compiled, and answers" in done.stdout, done.stdout + done.stderr
