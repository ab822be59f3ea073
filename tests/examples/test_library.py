"""The program of examples/library before two simulated workers."""

import re
import subprocess
import sys

import pytest

from gateway.app import bundled_tokenizer
from loadtest.fleet import SIM_READY, first_match, running
from tests import ROOT
from tests.support.patience import patience

pytestmark = pytest.mark.process


def test_later_questions_go_where_the_prompt_is_cached() -> None:
    with running("sim", "--port", "0") as one, running("sim", "--port", "0") as other:
        urls = [first_match(sim, SIM_READY)[0] for sim in (one, other)]
        command = [sys.executable, str(ROOT / "examples/library/route.py"), str(bundled_tokenizer()), *urls]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\S+): (\d+) of (\d+) tokens cached$", done.stdout, re.M)
    workers = [url for url, _, _ in found]
    assert len(found) == 3 and set(workers) <= set(urls)
    assert workers[1:] == workers[:1] * 2, "the system prompt is cached at the first one's worker"
    assert found[0][1] == "0" and all(int(cached) > 100 for _, cached, _ in found[1:])
