"""Prompts of agents equal the engine's: chats by its own conversion code, tokens by its render routes.

python -m tests.vllm.test_agents     rewrites tests/data/agents.json with the engine's code
"""

import json
import os
import subprocess
from datetime import datetime
from typing import Any

import pytest

from gateway import request
from gateway.apis.to_chat import as_chat, dialect_of
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.parity.comparison import ParityComparison
from gateway.parity.prober import compare
from gateway.parity.probes import PROBES
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from tests.support.agents import AGENT_ANSWERS, CHATS, MESSAGES, RESPONSES
from tests.support.engine_process import ROOT
from tests.vllm.engine import ENGINE, VllmWorker
from tests.vllm.tokenized import ask

INSIDE = ROOT / "tests" / "vllm" / "inside_agents.py"


def made_by_engine() -> dict[str, Any]:
    given = json.dumps({"messages": MESSAGES, "responses": RESPONSES, "chats": CHATS})
    command = [str(ENGINE.parent / "python"), str(INSIDE)]
    env = {**os.environ, "VLLM_SYSTEM_START_DATE": "2024-05-01"}
    process = subprocess.run(command, input=given, capture_output=True, text=True, check=True, env=env)
    golden: dict[str, Any] = json.loads(process.stdout[process.stdout.index("\n{") :])
    return golden


def test_golden_chats_equal_this_engines_chats() -> None:
    assert made_by_engine() == json.loads(AGENT_ANSWERS.read_text())


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
def test_prompts_of_agents_have_the_engines_tokens(vllm_worker: VllmWorker, route: str) -> None:
    prompts = PromptEncoder.load(vllm_worker.model)
    dialect, num_compared = dialect_of(prompts, datetime.now()), 0
    for body in MESSAGES if route == "/v1/messages" else RESPONSES:
        try:
            chat = as_chat(request(route, body), dialect)
            ours = prompts.chat(chat.fields, datetime.now()).tolist()
        except PromptError:
            ours = None
        try:
            answer = ask(vllm_worker.url, f"{route}/render", body)
        except LookupError:
            continue  # a flag is missing for what happens after the prompt
        if answer is not None and ours is not None:
            assert ours == answer["token_ids"], body
            num_compared += 1
    assert num_compared >= 10


async def test_worker_with_the_same_tokenizer_passes_all_parity_probes(vllm_worker: VllmWorker) -> None:
    prompts = PromptSource({"m": PromptEncoder.load(vllm_worker.model)}, Metrics())

    async def post(path: str, body: object) -> bytes | None:
        answer = ask(vllm_worker.url, path, dict(body))  # type: ignore[call-overload]
        return None if answer is None else json.dumps(answer).encode()

    parity = await compare(post, ParityComparison("m", prompts.tokenize, prompts.decode))
    assert parity.difference is None
    assert parity.num_compared == len(PROBES)


if __name__ == "__main__":
    golden = made_by_engine()
    parts = [f'"engine": {json.dumps(golden.pop("engine"))}']
    for name, chats in golden.items():
        lines = [json.dumps(each, ensure_ascii=False) for each in chats]
        parts.append(f'"{name}": [\n' + ",\n".join(lines) + "\n]")
    AGENT_ANSWERS.write_text("{\n" + ",\n".join(parts) + "\n}\n")
