"""Chats and completions as MLX renders them. The oracle is its own code: digests of its prompts of the corpus
(`python -m tests.mlx.test_prompts` writes them)."""

from datetime import datetime

import msgspec
import pytest

from gateway.core.rendering import Rendering
from gateway.core.route_table import CHAT
from gateway.core.token_runs import TokenRunCache
from gateway.requests.parsing import parse_request
from gateway.tokenization.chat_template import MediaError
from gateway.tokenization.mlx import MlxEncoder
from gateway.tokenization.model_families import load as load_any
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from tests import ROOT
from tests.support import corpus
from tests.support.corpus import (
    CHATS,
    COMPLETIONS,
    MLX_GOLDEN,
    TEMPLATE_NAMES,
    TEMPLATES,
    Body,
    answer,
    assistant,
    call,
    chat,
    digest,
    system,
    text_part,
    user,
)

TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
NOW = datetime(2024, 7, 26)


def load(template: str) -> MlxEncoder:
    return MlxEncoder.load_for_mlx(TOKENIZER, (TEMPLATES / f"{template}.jinja").read_text("utf-8"))


def ours(prompts: MlxEncoder, body: Body, now: datetime) -> str:
    try:
        return digest(prompts.chat(body, now))
    except PromptError:
        return "-"


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_chats_are_the_engine_s(template: str) -> None:
    golden, prompts = corpus.golden(MLX_GOLDEN), load(template)
    reported = list(zip(CHATS, golden.chats[template], strict=True))
    answered = [(body, theirs) for body, theirs in reported if theirs != "-"]
    assert len(answered) > 100
    wrong = [body for body, theirs in answered if theirs != ours(prompts, body, golden.asked_at)]
    assert [corpus.name_of(body) for body in wrong] == []


def test_texts_are_the_engine_s() -> None:
    prompts = load("chatml")
    reported = zip(COMPLETIONS, corpus.golden(MLX_GOLDEN).completions, strict=True)
    answered = [(body, theirs) for body, theirs in reported if theirs != "-"]
    assert len(answered) > 5
    wrong = [body for body, theirs in answered if corpus.digest_all(prompts.completion(body)) != theirs]
    assert [corpus.name_of(body) for body in wrong] == []


def test_a_conversation_that_grows_has_the_tokens_of_the_whole() -> None:
    prompts, plain, runs = load("qwen3"), load("qwen3"), TokenRunCache()
    prompts.remember(runs, NOW, pytest.fail)
    turns = [user("a"), assistant("b"), user([text_part("c"), text_part("d")])]
    turns += [assistant("", tool_calls=[call("now", '{"a": 1}')]), answer("e"), assistant("f"), user("g")]
    for num in [*range(1, len(turns) + 1)] * 2:
        body = chat(system("s"), *turns[:num])
        request = parse_request(CHAT, msgspec.json.encode({"model": "m", **body}), runs)
        assert prompts.tokens(request, NOW).tokens == plain.chat(body, NOW)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "a"},
        {"messages": ["a"]},
        {"messages": [user([{"type": "text"}])]},
        {"messages": [assistant("", tool_calls="a")]},
        {"messages": [assistant("", tool_calls=["a"])]},
        {"messages": [assistant("", tool_calls=[{"function": "a"}])]},
        {"messages": [assistant("", tool_calls=[call("now", "{")])]},
        {"tools": "a"},
        {"chat_template_kwargs": "a"},
        {"chat_template_kwargs": {"chat_template": "a"}},
        {"chat_template_kwargs": {"continue_final_message": True}},
    ],
    ids=str,
)
def test_bodies_that_the_engine_rejects_have_no_prompt(fields: Body) -> None:
    with pytest.raises(PromptError):
        load("chatml").chat({**chat(user("a")), **fields}, NOW)


def test_images_are_media() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(MediaError):
        load("chatml").chat(chat(user([part])), NOW)


def test_it_is_the_renderer_of_mlx_and_shares_the_tokenizer() -> None:
    one = load_any(Rendering(), "jinja", TOKENIZER, None)
    mlx = load_any(Rendering("mlx"), "jinja", TOKENIZER, None, one)
    assert isinstance(mlx, MlxEncoder) and mlx.rendering == Rendering("mlx")
    assert isinstance(one, PromptEncoder) and mlx.tokenizer is one.tokenizer
