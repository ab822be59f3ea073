"""SDKs of applications, directly at a real engine and through the gateway: answers are equal."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from loadtest.clients import CALLS, MODEL, ask_async, difference, plain
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.engine import VllmWorker

SYSTEM = "You are a coding agent. You read files, change them and run the tests. " * 12


def _tool(name: str, field: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    return {"name": name, "description": f"Takes a {field}.", "input_schema": schema}


TOOLS: Any = [_tool("read_file", "path"), _tool("run", "command")]
STEPS = [
    ("read_file", {"path": "src/river.py"}, "def ends(river):\n    return river.sea  # Grüße\n"),
    ("run", {"command": "pytest -q"}, "F\nAttributeError: 'River' object has no attribute 'sea'"),
    ("read_file", {"path": "src/sea.py"}, "class Sea:\n    name = '河'\n"),
    ("run", {"command": "pytest -q"}, "1 passed in 0.01s"),
]


@pytest.fixture(scope="module")
def gateway(vllm_worker: VllmWorker, vllm_model: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess("--worker", vllm_worker.url, "--tokenizer", str(vllm_model)) as process:
        yield process


@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[f"{kind}: {name}" for kind, name in CALLS])
def test_calls_through_the_gateway_have_the_engines_answers(
    vllm_worker: VllmWorker, gateway: GatewayProcess, kind: str, name: str
) -> None:
    assert difference(vllm_worker.url, gateway.url, kind, name) is None


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_concurrent_streams_through_the_gateway_have_the_engines_events(
    vllm_worker: VllmWorker, gateway: GatewayProcess, kind: str
) -> None:
    direct = asyncio.run(ask_async(vllm_worker.url, kind))
    assert direct == asyncio.run(ask_async(gateway.url, kind)) and len(direct) == 4


@pytest.mark.ci
def test_tool_loop_of_a_coding_agent_has_the_engines_events(
    vllm_worker: VllmWorker, gateway: GatewayProcess
) -> None:
    """Each turn sends all turns before it, with scripted tool calls and their results."""
    _loop(vllm_worker.url)  # warms the engine, which reports cached tokens
    direct, through = _loop(vllm_worker.url), _loop(gateway.url)
    assert len(direct) == len(STEPS) + 1
    assert direct == through


def _loop(url: str) -> list[Any]:
    streams: list[Any] = []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The tests of the river fail. Mend it."}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=patience(120)) as client:
        for number in range(len(STEPS) + 1):
            stream = client.messages.create(
                model=MODEL,
                max_tokens=8,
                system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
                tools=TOOLS,
                messages=messages,  # type: ignore[arg-type]
                extra_body={"temperature": 0},
                stream=True,
            )
            streams.append(plain(list(stream)))
            if number < len(STEPS):
                name, arguments, output = STEPS[number]
                use = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
                result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": output}
                messages += [
                    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
                    {"role": "user", "content": [result]},
                ]
    return streams
