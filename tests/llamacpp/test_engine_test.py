"""`kvgate engine test` on a real llama.cpp server: judged by its own conventions, and usable."""

import json
import subprocess
import sys
from pathlib import Path

from tests.llamacpp.engine import LlamaCppWorker
from tests.support.patience import patience

VERDICTS = {
    **dict.fromkeys(["token ids", "cached tokens", "several prompts", "several answers"], "ok"),
    **dict.fromkeys(["cancelled stream", "unknown field", "bad requests", "health"], "ok"),
    "load": "unsupported",  # no KV use
    "events": "unsupported",
    "tenants' salts": "unsupported",  # it has none, and is not known to
    "unknown model": "unsupported",  # its one model answers
}


def report_of(url: str, *flags: str) -> dict[str, str]:
    command = [sys.executable, "-m", "kvgate", "engine", "test", url, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stdout
    return {each["question"]: each["result"] for each in json.loads(done.stdout)["findings"]}


def test_llama_cpp_does_what_is_known_of_it(
    workers: tuple[LlamaCppWorker, LlamaCppWorker], model: Path
) -> None:
    url = workers[0].url
    assert report_of(url) == VERDICTS | {"texts": "unsupported", "prompts": "unsupported"}
    with_tokenizer = report_of(url, "--tokenizer", str(model))
    assert with_tokenizer == VERDICTS | {
        "texts": "ok",
        "prompts": "unsupported",
    }  # it renders a tool otherwise
    answered = json.loads(workers[0].post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
    assert answered["usage"]["completion_tokens"] == 1
