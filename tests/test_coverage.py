"""`make coverage` counts branches, in the processes that tests start too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-m", "kvgate", "policy", "list"], check=True)
"""


def test_branches_of_a_child_process_are_counted(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    data = f"--data-file={tmp_path}/data"

    def coverage(*arguments: str) -> None:
        command = [sys.executable, "-m", "coverage", *arguments]
        subprocess.run(command, check=True, cwd=ROOT, timeout=patience(120), env=clean_environment())

    coverage("run", data, str(tmp_path / "parent.py"))
    coverage("combine", "--quiet", data, str(tmp_path))
    coverage("json", "--quiet", data, f"-o{tmp_path}/report.json", "--include=gateway/commands/policy.py")
    report = json.loads((tmp_path / "report.json").read_text())
    (policy,) = report["files"].values()
    assert report["meta"]["branch_coverage"] is True
    assert policy["summary"]["covered_branches"] > 0 and policy["missing_lines"]
