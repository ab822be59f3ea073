"""`kvgate engine test` on a real SGLang server with an adapter: what it finds is what SGLang does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sglang.conftest import Start
from tests.support.engine_model import make_adapter
from tests.support.patience import patience

AS_ASSUMED = [
    "load", "token ids", "cached tokens", "events", "predictions", "replay", "tenants' salts",
    "adapter adapter-a", "texts", "prompts", "several prompts", "cancelled stream", "unknown field",
    "bad requests", "health",
]  # fmt: skip
VERDICTS = dict.fromkeys(AS_ASSUMED, "ok") | {
    "unknown model": "unsupported",  # the base answers: kvgate sends it no name that it does not list
    "several answers": "inconclusive",  # n = 2: the first prompt feeds the second, and counts as cached
}


@pytest.mark.parametrize("page", [1, 16])
def test_sglang_does_what_the_gateway_assumes(start_module_sglang: Start, tmp_path: Path, page: int) -> None:
    lora = [("adapter-a", make_adapter(tmp_path / "adapter-a"))]
    worker = start_module_sglang(page_size=page, lora=lora).wait_ready()
    command = [sys.executable, "-m", "kvgate", "engine", "test", worker.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    worker.stop()  # its cores
    report = json.loads(done.stdout)
    found = {each["question"]: each["result"] for each in report["findings"]}
    assert found == VERDICTS, done.stdout
    assert done.returncode == 0, done.stdout
