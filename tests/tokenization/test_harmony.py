"""gpt-oss: prompts equal those of vLLM's own code, token for token."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway import request
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.tokenization.base import Renderer
from gateway.tokenization.model_families import RENDERERS
from gateway.tokenization.prompt_encoder import PromptError
from tests.support.agents import AGENT_ANSWERS, CHATS

NOON = datetime(2024, 5, 1, 12)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def harmony() -> Renderer:
    return RENDERERS["harmony"](HERE, None)


def chat(body: dict[str, Any]) -> Any:
    return request("/v1/chat/completions", body)


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_chats_have_the_engine_s_tokens(harmony: Renderer, number: int) -> None:
    golden = json.loads(AGENT_ANSWERS.read_text(encoding="utf-8"))["harmony"][number]
    ours = harmony.tokens(chat(CHATS[number]), NOON).tokens.tolist()
    assert harmony.decode(ours) == harmony.decode(golden)
    assert ours == golden


def test_texts_have_the_engine_s_tokens(harmony: Renderer) -> None:
    assert harmony.completion({"prompt": "hi there"})[0].tolist() == [3686, 1354]
    assert len(harmony.completion({"prompt": ["a", "b<|end|>"]})) == 2
    for body in ({"prompt": 5}, {"prompt": "a", "suffix": "b"}, {"prompt": [["a"]]}):
        with pytest.raises(PromptError):
            harmony.completion(body)


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER], "reasoning_effort": "none"},
        {"messages": [USER], "documents": [{"a": "b"}]},
        {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": [{"role": "unknown", "content": "a"}]},
        {"messages": [USER, {"role": "assistant", "content": "b", "reasoning_content": "c"}]},
        {"messages": [USER], "tools": [{"type": "function"}]},
    ],
)
def test_a_chat_that_harmony_cannot_render_is_rejected(harmony: Renderer, body: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        harmony.tokens(chat({"model": "m", **body}), NOON)


def test_messages_of_agents_are_rendered_and_responses_are_not(harmony: Renderer) -> None:
    prompts = PromptSource({"m": harmony}, Metrics(), clock=lambda zone: NOON)
    first = request("/v1/messages", {"model": "m", "max_tokens": 5, "messages": [USER]})
    assert prompts.tokenize(first).tokens == prompts.tokenize(chat({"model": "m", "messages": [USER]})).tokens
    second = request("/v1/responses", {"model": "m", "input": "a"})
    assert prompts.tokenize(second).source == "failed"


def test_a_missing_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PromptError, match="no template"):
        RENDERERS["harmony"](tmp_path, "{{ x }}")
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(PromptError, match=r"install kvgate\[harmony\]"):
        RENDERERS["harmony"](tmp_path, None)


def test_the_description_of_a_harmony_renderer(harmony: Renderer) -> None:
    assert harmony.describe()["encoder"] == "harmony"
    assert harmony.growing({"prompt": "a" * 9999}) is None
    assert harmony.before_media({}, NOON).tolist() == []
    assert "Harmony" in repr(harmony)
