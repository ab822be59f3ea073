"""`kvgate engine test` on a real MLX server: it is asked what can be asked of it, and outlives the test."""

import json
import subprocess
import sys

from tests.mlx.engine import MlxWorker
from tests.support.patience import patience

VERDICTS = {
    **dict.fromkeys(["cached tokens", "unknown field", "bad requests", "health", "texts", "prompts"], "ok"),
    "load": "unsupported",  # no metrics
    "token ids": "unsupported",  # a list as the prompt would end it
    "events": "unsupported",
    "tenants' salts": "unsupported",
    "unknown model": "unsupported",  # a name that cannot be loaded would unload its model
    "several answers": "unsupported",  # n = 2 gets one answer
    "cancelled stream": "inconclusive",
}


def test_mlx_does_what_is_known_of_it(workers: tuple[MlxWorker, MlxWorker]) -> None:
    worker = workers[0]
    command = [sys.executable, "-m", "kvgate", "engine", "test", worker.url, "--json"]
    command += ["--tokenizer", str(worker.model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    found = {each["question"]: each["result"] for each in json.loads(done.stdout)["findings"]}
    assert found == VERDICTS, done.stdout
    assert done.returncode == 0 and worker.is_ready()
