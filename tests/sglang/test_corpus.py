"""Local tokens before a real SGLang server: each chat, response and message of the corpus that the engine
answers is found in its cache to the last block when it comes again, as the engine itself counts."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.agents import MESSAGES, RESPONSES
from tests.support.corpus import CHATS, name_of
from tests.support.engine_figures import PROMPTS, EngineFigures
from tests.support.engine_talk import TalkAnswer, gateway_of, post, settle
from tests.support.gateway_process import GatewayProcess

Body = dict[str, Any]

MAX_BODY_CHARS = 6_000
"""Longer bodies are left out: they take the CPU minutes, and are among the golden prompts."""
PAGE = 16
BODIES = {"/v1/chat/completions": CHATS, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}


@pytest.fixture(scope="module")
def worker(start_module_sglang: Start) -> SglangWorker:
    return start_module_sglang(page_size=PAGE, num_tokens=100_000).wait_ready()


@pytest.fixture(scope="module")
def gateway(worker: SglangWorker) -> Iterator[GatewayProcess]:
    with gateway_of(worker) as process:
        yield process


def asked(path: str, body: Body) -> Body:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {**body, "model": "m", "temperature": 0, limit: 4}


def num_prompt(answer: TalkAnswer) -> int:
    usage = answer.body["usage"]
    if "prompt_tokens" in usage:
        return int(usage["prompt_tokens"])
    cached_apart = "cache_read_input_tokens" in usage or "input_tokens_details" not in usage
    return int(usage["input_tokens"]) + (answer.cached if cached_apart else 0)


@pytest.mark.parametrize("path", BODIES)
def test_every_answered_body_is_found_whole_when_it_comes_again(
    gateway: GatewayProcess, figures: EngineFigures, path: str
) -> None:
    bodies = [asked(path, body) for body in BODIES[path] if len(str(body)) < MAX_BODY_CHARS]
    answered = [body for body in bodies if post(gateway, path, body).status == 200]
    settle(gateway)
    again = [(body, post(gateway, path, body)) for body in answered]
    wrong = [
        (answer.predicted, answer.cached, num_prompt(answer), name_of(body))
        for body, answer in again
        if not answer.predicted == answer.cached == (num_prompt(answer) - 1) // PAGE * PAGE
    ]
    figures.add(PROMPTS, "SGLang 0.5.23", len(answered) - len(wrong), len(answered))
    assert wrong == []
    assert len(answered) > len(bodies) // 4


def test_the_gateway_tokenizes_by_itself(gateway: GatewayProcess) -> None:
    (status,) = (each for each in gateway.admin("/admin/tokenizer")["models"] if each["workers"])
    assert (status["source"], status["rendering"]) == ("local", "sglang 0.5.23")
    assert gateway.admin("/admin/tokenizer")["remote_tokenizers"]["calls"] == []
