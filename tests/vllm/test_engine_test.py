"""`kvgate engine test` on a real worker with an adapter: everything is as the gateway assumes."""

import json
import subprocess
import sys

import pytest

from tests.support.patience import patience
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.ci


def test_vllm_does_what_the_gateway_assumes(vllm_worker: VllmWorker) -> None:
    command = [sys.executable, "-m", "kvgate", "engine", "test", vllm_worker.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    report = json.loads(done.stdout)
    found = {each["question"]: each["result"] for each in report["findings"]}
    assert done.returncode == 0, done.stdout
    assert list(found) == [
        "load", "token ids", "cached tokens", "events", "predictions", "replay", "tenants' salts",
        "unknown model", "adapter adapter-a", "texts", "prompts", "several prompts", "several answers",
        "cancelled stream", "unknown field", "bad requests", "health",
    ]  # fmt: skip
    copies = found.pop("several answers")
    assert copies == "inconclusive"  # n = 2: the first answer's prompt feeds the second, and counts as cached
    assert set(found.values()) == {"ok"}, done.stdout
