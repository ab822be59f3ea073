"""A real vLLM started with defaults for its chat template: chats are tokenized as it renders them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.engine_process import ROOT
from tests.support.engine_talk import chat, is_exact, text
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker

TEMPLATE = ROOT / "tests" / "data" / "templates" / "qwen3.jinja"
"""Template that ends the prompt otherwise where `enable_thinking` is false."""
DEFAULTS = {"enable_thinking": False}


@pytest.fixture(scope="module")
def worker(start_module_vllm: Callable[..., VllmWorker]) -> VllmWorker:
    defaults = ("--chat-template", str(TEMPLATE), "--default-chat-template-kwargs", json.dumps(DEFAULTS))
    return start_module_vllm(extra_args=(*defaults, "--chat-template-content-format", "string")).wait_ready()


@pytest.fixture(scope="module")
def gateway(
    worker: VllmWorker, vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """The gateway has the template that the worker was started with, and not its defaults."""
    config = tmp_path_factory.mktemp("defaults") / "kvgate.toml"
    config.write_text(f'[models.m]\ntokenizer = "{vllm_model}"\ntemplate = "{TEMPLATE}"\n')
    flags = ("--config", str(config), "--worker", worker.url, "--expose-headers", "--admin-auth", "off")
    with GatewayProcess(*flags) as process:
        is_exact(process)
        yield process


def test_the_worker_s_own_tokens_are_asked_for(gateway: GatewayProcess, worker: VllmWorker) -> None:
    (line,) = (line for line in gateway.log().splitlines() if f"at {worker.url}: remote, " in line)
    assert "not compared" not in line and "no tokenizer" not in line, line


@pytest.mark.parametrize(
    "fields",
    [{}, {"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "none"}],
    ids=["the default", "the client's own", "an effort"],
)
def test_chats_are_predicted(gateway: GatewayProcess, fields: dict[str, object]) -> None:
    for seed in range(4):
        turns = [text(f"defaults {fields} {seed}", 60)]
        for _ in range(3):
            answer = chat(gateway, *turns, **fields)
            assert answer.predicted == answer.cached, (seed, len(turns))
            turns += [answer.text, text(f"more {fields} {seed} {len(turns)}", 30)]
        assert answer.cached > answer.body["usage"]["prompt_tokens"] // 2
    counts = [line for line in gateway.metrics().splitlines() if line.startswith("kvgate_mispredictions")]
    assert counts and all(line.endswith(" 0.0") for line in counts), counts
