"""The A/B test of examples/ab-test before a simulated fleet, and its report."""

import json
import runpy
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from loadtest.fleet import simulated_fleet
from tests import ROOT
from tests.support.patience import patience, wait_until

FOLDER = ROOT / "examples/ab-test"
NUM_REQUESTS = 40


def completion(url: str, session: int) -> None:
    body = json.dumps({"model": "m", "prompt": [1] * 64, "max_tokens": 1}).encode()
    headers = {"content-type": "application/json", "x-session-id": str(session)}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=patience(30)
    ) as answer:
        assert answer.status == 200


@pytest.mark.process
def test_the_report_compares_the_policies_of_a_running_gateway(tmp_path: Path) -> None:
    (tmp_path / "kvgate.toml").write_text((FOLDER / "kvgate.toml").read_text())
    # The flags that name the fleet's workers override those of the file.
    with simulated_fleet(2, (), ("--config", str(tmp_path / "kvgate.toml"))) as fleet:
        for session in range(NUM_REQUESTS):
            completion(fleet.gateway_url, session)

        def report() -> list[str]:
            command = [sys.executable, str(FOLDER / "report.py"), fleet.admin_url]
            return subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=patience(60)
            ).stdout.splitlines()

        wait_until(lambda: f"of {NUM_REQUESTS} decisions" in report()[-1], "the shadow compared all")
        head, *rows = report()
    assert head.split() == ["policy", "share", "requests", "failed", "p50", "p90", "hits"]
    shares = {row.split()[0]: row.split()[1] for row in rows[:2]}
    assert shares == {"expected_ttft": "90%", "prefix_overlap": "10%"}
    assert sum(int(row.split()[2]) for row in rows[:2]) == NUM_REQUESTS
    assert [row.split()[3] for row in rows[:2]] == ["0", "0"]
    assert rows[2].startswith("least_load would have chosen the same worker in ")


def test_a_policy_without_requests_has_no_times() -> None:
    lines_of = runpy.run_path(str(FOLDER / "report.py"))["lines_of"]
    score = {"name": "random", "share": 0.1, "requests": 0, "failed_requests": 0}
    view = {"scores": [{**score, "ttft_p50_s": None, "ttft_p90_s": None, "hit_rate": None}], "shadow": []}
    assert lines_of(view)[1].split() == ["random", "10%", "0", "0", "-", "-", "-"]
