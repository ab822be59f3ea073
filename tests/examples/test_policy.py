"""The policy of examples/policy: as a file, as an installed package, and what it chooses."""

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.policies.framework.plugins import read_file
from kvgate import Candidate, Choice, Query
from loadtest.fleet import GATEWAY
from tests import ROOT
from tests.policies.contract import candidate
from tests.support.patience import patience

FOLDER = ROOT / "examples/policy"
POLICY = read_file(FOLDER / "pack_background.py").plugins["pack_background"]


def ran(*command: str, environ: Mapping[str, str] = os.environ) -> str:
    """Run a command, which has to succeed. Returns what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), env=dict(environ))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def chosen(query: Query, *candidates: Candidate) -> Choice:
    choice = POLICY.make().choose(query, candidates, random.Random(1))
    assert isinstance(choice, Choice)
    return choice


def filled(name: str, usage: float, **state: int) -> Candidate:
    """A candidate with a cache that is used to that share."""
    plain = candidate(name, **state)
    return Candidate(
        plain.worker,
        plain.overlap_tokens,
        plain.uncached_tokens,
        plain.booked_tokens,
        plain.num_in_flight,
        plain.num_waiting,
        kv_usage=usage,
    )


def test_interactive_requests_go_where_they_begin_soonest() -> None:
    busy, idle = candidate("a", overlap=900, booked=5000), candidate("b")
    choice = chosen(Query("m", 1000), busy, idle)
    assert (choice.index, choice.reason, choice.terms) == (1, "begins soonest", (5100.0, 1000.0))


@pytest.mark.parametrize(
    ("usage", "waiting", "index"), [(0.5, 0, 0), (0.9, 0, 1), (0.5, 1, 1)], ids=["room", "full", "queue"]
)
def test_background_requests_fill_the_busiest_worker_with_room(
    usage: float, waiting: int, index: int
) -> None:
    busy, idle = filled("a", usage, booked=5000, waiting=waiting), filled("b", 0.0)
    assert chosen(Query("m", 1000, priority=-1), busy, idle).index == index


def test_background_requests_without_room_go_where_they_begin_soonest() -> None:
    choice = chosen(Query("m", 1000, priority=-1), filled("a", 1.0, booked=9), filled("b", 1.0, booked=5))
    assert (choice.index, choice.reason) == (1, "background, no worker has room")


@pytest.mark.process
def test_the_file_and_the_package_keep_the_contract(tmp_path: Path) -> None:
    budget = ("--policy-budget-ms", "60000")
    text = ran(*GATEWAY, "policy", "test", str(FOLDER / "pack_background.py"), *budget)
    assert text.endswith("9 of 9 checks passed\n")
    copy = tmp_path / "policy"
    copy.mkdir()
    for file in (*FOLDER.glob("*.py"), FOLDER / "pyproject.toml"):  # a build writes beside its sources
        (copy / file.name).write_text(file.read_text())
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    ran(*pip, "--target", str(tmp_path / "site"), str(copy))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    (line,) = [
        line
        for line in ran(*GATEWAY, "policy", "list", environ=environ).splitlines()
        if "pack_background" in line
    ]
    assert line.startswith("policy: ")
    text = ran(*GATEWAY, "policy", "test", "pack_background", *budget, environ=environ)
    assert text.endswith("9 of 9 checks passed\n")
    ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy), environ=environ)
