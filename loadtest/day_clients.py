"""Figure: the number of calls of the `openai` and `anthropic` clients with another result through the gateway
than from a real vLLM directly (`loadtest/clients.py`)."""

import tempfile
from pathlib import Path

from loadtest.clients import CALLS, difference
from loadtest.fleet import gateway_before
from loadtest.report import Figure, publish
from tests.support.engine_model import ensure_model
from tests.vllm.engine import ENGINE, VllmOptions, VllmWorker

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def measure() -> list[Figure]:
    model = ensure_model(ENGINE.parent / "python")
    with tempfile.TemporaryDirectory() as folder:
        worker = VllmWorker(model, Path(folder) / "engine.log", VllmOptions(extra_args=TOOLS))
        try:
            worker.start().wait_ready()
            with gateway_before([worker.url], ["--tokenizer", str(model)]) as gateway:
                found = [difference(worker.url, gateway.gateway_url, *call) for call in CALLS]
        finally:
            worker.stop()
    for each in filter(None, found):
        print(each)
    num = float(sum(each is not None for each in found))
    return [Figure("day.sdk_differences", num, f"of {len(CALLS)}", 0.0, [num])]


if __name__ == "__main__":
    publish("day_clients", measure())
