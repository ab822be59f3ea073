"""Mistral's own format: prompts equal those of vLLM's own code, token for token."""

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
from gateway.tokenization.chat_template import MediaError
from gateway.tokenization.model_families import RENDERERS, renderer_of
from gateway.tokenization.prompt_encoder import PromptError
from tests.support.agents import MESSAGES, chat, user
from tests.support.mistral import (
    CHATS,
    EMPTY_TOOLS,
    GOLDEN,
    IMAGE,
    OBJECT,
    TEXTS,
    TRUNCATED,
    VERSIONS,
    write_model,
)

NOON = datetime(2024, 5, 1, 12)
LENIENT = (OBJECT, EMPTY_TOOLS)
"""Rendered here, and rejected by vLLM with an error: `/v1/messages` arrive in this form."""


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def golden(version: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))[version]
    return golden


@pytest.fixture(scope="module")
def mistral(version: str, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return RENDERERS["mistral"](write_model(tmp_path_factory.mktemp("mistral"), version), None)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return RENDERERS["mistral"](write_model(tmp_path_factory.mktemp("mistral"), VERSIONS[-1]), None)


def asked(body: dict[str, Any]) -> Any:
    return request("/v1/chat/completions", body)


def ours(mistral: Renderer, body: dict[str, Any]) -> list[int] | None:
    """Tokens of a body; None where it is not rendered."""
    try:
        return mistral.tokens(asked(body), NOON).tokens.tolist()
    except PromptError:
        return None


@pytest.mark.slow
def test_chats_have_the_engine_s_tokens(mistral: Renderer, golden: dict[str, Any]) -> None:
    assert len(golden["chats"]) == len(CHATS)
    for _ in range(2):  # a cached prompt is the same
        for body, tokens in zip(CHATS, golden["chats"], strict=True):
            if body not in LENIENT:
                assert ours(mistral, body) == (None if body == TRUNCATED else tokens), body


def test_texts_have_the_engine_s_tokens(mistral: Renderer, golden: dict[str, Any]) -> None:
    for body, tokens in zip(TEXTS, golden["texts"], strict=True):
        try:
            made = [each.tolist() for each in mistral.completion(body)]
        except PromptError:
            made = None
        assert made == tokens, body


def test_agents_messages_have_the_engine_s_tokens(mistral: Renderer, golden: dict[str, Any]) -> None:
    prompts, num_equal = PromptSource({"m": mistral}, Metrics(), clock=lambda zone: NOON), 0
    for body, tokens in zip(MESSAGES, golden["messages"], strict=True):
        made = prompts.tokenize(request("/v1/messages", body)).tokens
        assert bool(made) == bool(tokens), body
        if made:
            assert made[0].tolist() == tokens
            num_equal += 1
    assert num_equal >= 11


def test_later_versions_render_reasoning_and_calls(newest: Renderer) -> None:
    """Most golden answers are tokens, not rejections."""
    refused = [number for number, body in enumerate(CHATS) if ours(newest, body) is None]
    assert len(refused) < len(CHATS) // 3


@pytest.mark.parametrize(
    "body",
    [
        chat(),
        chat(user("a"), mm_processor_kwargs={"a": 1}),
        chat(user("a"), add_generation_prompt=None),
        chat(user({"a": 1})),
        chat(user("a"), {"role": "assistant", "tool_calls": {"a": 1}}),
        chat(user("a"), {"role": "assistant", "tool_calls": ["a"]}),
        chat(user("a"), tools=[{"type": "function"}]),
    ],
)
def test_a_chat_that_mistral_cannot_render_is_rejected(newest: Renderer, body: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        newest.tokens(asked(body), NOON)


def test_an_image_is_recognized(newest: Renderer) -> None:
    with pytest.raises(MediaError):
        newest.tokens(asked(chat(user([IMAGE]))), NOON)
    assert newest.before_media(chat(user([IMAGE])), NOON).tolist() == []


def test_the_description_of_a_mistral_renderer(newest: Renderer) -> None:
    tokens = newest.tokens(asked(chat(user("h\u00e9llo"))), NOON).tokens
    assert newest.decode(tokens) is not None and "[INST]" in str(newest.decode(tokens))
    assert newest.decode([1, 1 << 20]) == "(token ids outside the model's vocabulary)"
    assert newest.describe()["encoder"] == "mistral"
    assert newest.describe()["segments"]["entries"] > 0
    assert newest.growing({"prompt": "a" * 9999}) is None
    assert repr(newest) == "Mistral(v15)"


# renderer of a directory ------------------------------------------------------------------------


def names(directory: Path, *files: str) -> str:
    for file in files:
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).write_text("{}")
    return renderer_of(directory)


@pytest.mark.parametrize(
    ("files", "renderer"),
    [
        (["tekken.json"], "mistral"),
        (["tekken.json", "config.json"], "mistral"),
        (["tekken.json", "tokenizer.json"], "jinja"),
        (["tekken.json", "tokenizer.json", "consolidated.safetensors"], "mistral"),
        (["tekken.json", "tokenizer.json", "model.safetensors", "of/consolidated-1.safetensors"], "mistral"),
        (["tekken.json", "tokenizer.json", "model-1-of-2.safetensors", "params.json"], "jinja"),
        (["tekken.json", "tokenizer.json", "params.json"], "mistral"),
        (["tokenizer.json", "consolidated.safetensors", "params.json"], "jinja"),
    ],
)
def test_a_directory_is_rendered_as_the_engine_does(tmp_path: Path, files: list[str], renderer: str) -> None:
    assert names(tmp_path, *files) == renderer


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=f"{tmp_path}: no tekken.json"):
        RENDERERS["mistral"](tmp_path, None)
    for text in ("{", "{}", '{"config": {"version": "v99"}}'):
        (tmp_path / "tekken.json").write_text(text)
        with pytest.raises(PromptError, match=r"tekken\.json is not a tokenizer: \w+: .+"):
            RENDERERS["mistral"](tmp_path, None)


def test_a_missing_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(PromptError, match="no template"):
        RENDERERS["mistral"](tmp_path, "{{ x }}")
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    with pytest.raises(PromptError, match=r"install kvgate\[mistral\], or set renderer"):
        RENDERERS["mistral"](tmp_path, None)
