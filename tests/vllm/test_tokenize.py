"""kvgate's tokens equal the real engine's, for every body of the corpus and every template.

The engine tokenizes by /tokenize, and by its render routes where /tokenize ignores fields. Its answers are
kept as digests, so that tests/tokenization/test_prompt_encoder.py has the same oracle without an engine:

    python -m tests.vllm.test_tokenize URL     rewrites the digests, from a worker at URL
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime

import msgspec
import pytest

from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from tests import ROOT
from tests.support import corpus
from tests.support.corpus import (
    CHATS,
    COMPLETIONS,
    GOLDEN,
    REFUSED,
    TEMPLATE_NAMES,
    TEMPLATES,
    Body,
    Golden,
    digest,
)
from tests.support.engine_figures import PROMPTS, EngineFigures
from tests.vllm.engine import VllmWorker
from tests.vllm.tokenized import ask

TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
MODEL_LEN = 8192


def engine_chat(url: str, body: Body, template: str) -> dict[str, list[int] | None]:
    """The engine's tokens by route, None where it rejects the body, without routes that do not apply."""
    body = body if template == "chatml" else {**body, "chat_template": source(template)}
    tokens: dict[str, list[int] | None] = {}
    for route, field in (("/tokenize", "tokens"), ("/v1/chat/completions/render", "token_ids")):
        if route == "/tokenize" and not corpus.is_for_tokenize(body):
            continue
        try:
            answer = ask(url, route, body)
        except LookupError:
            continue
        tokens[route] = answer and answer[field]
    return tokens


def engine_completion(url: str, body: Body) -> list[list[int]]:
    answers = ask(url, "/v1/completions/render", body)
    assert answers is not None, body
    return [answer["token_ids"] for answer in answers]


def source(template: str) -> str:
    return (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")


def ours(prompts: PromptEncoder, body: Body) -> list[int] | None:
    try:
        return prompts.chat(body, datetime.now()).tolist()
    except PromptError:
        return None


def load(template: str) -> PromptEncoder:
    chat_template = None if template == "chatml" else source(template)
    return PromptEncoder.load(TOKENIZER, chat_template, max_model_len=MODEL_LEN)


TEMPLATE_PARAMS = [pytest.param(name, marks=[pytest.mark.ci] * (name == "chatml")) for name in TEMPLATE_NAMES]


@pytest.mark.vllm
@pytest.mark.parametrize("template", TEMPLATE_PARAMS)
def test_chats_have_the_engines_tokens(
    vllm_worker: VllmWorker, template: str, figures: EngineFigures
) -> None:
    prompts = load(template)
    pairs = [
        (f"{route}: {corpus.name_of(body)}", tokens, ours(prompts, body))
        for body in CHATS
        for route, tokens in engine_chat(vllm_worker.url, body, template).items()
    ]
    figures.add_equal("vLLM 0.32", [(tokens, own) for _, tokens, own in pairs if tokens], PROMPTS)
    assert [name for name, tokens, own in pairs if tokens != own] == []


@pytest.mark.vllm
@pytest.mark.ci
def test_completions_have_the_engines_tokens(vllm_worker: VllmWorker) -> None:
    prompts = load("chatml")
    for body in COMPLETIONS:
        tokens = [each.tolist() for each in prompts.completion(body)]
        assert tokens == engine_completion(vllm_worker.url, body), corpus.name_of(body)


@pytest.mark.vllm
@pytest.mark.ci
def test_engine_rejects_the_bodies_that_kvgate_rejects(vllm_worker: VllmWorker) -> None:
    prompts = load("chatml")
    for body in REFUSED:
        assert ours(prompts, body) is None, body
        assert ask(vllm_worker.url, "/v1/chat/completions/render", body) is None, body


@pytest.mark.vllm
def test_golden_answers_equal_this_engines_answers(vllm_worker: VllmWorker) -> None:
    golden = corpus.golden()
    dated = {"llama3": golden.chats["llama3"]}  # this template prints the date
    assert golden.chats | dated == engine_chats(vllm_worker.url) | dated
    assert golden.completions == engine_completions(vllm_worker.url)


def engine_chats(url: str) -> dict[str, list[str]]:
    return {template: list(_chat_digests(url, template)) for template in TEMPLATE_NAMES}


def _chat_digests(url: str, template: str) -> Iterator[str]:
    for body in CHATS:
        answers = list(engine_chat(url, body, template).values())
        yield digest(answers[0]) if answers else "?"


def engine_completions(url: str) -> list[str]:
    return [corpus.digest_all(engine_completion(url, body)) for body in COMPLETIONS]


def main(url: str) -> None:
    """Write the golden file from the worker at `url`."""
    with urllib.request.urlopen(f"{url}/version") as answer:
        version = json.load(answer)["version"]
    golden = Golden(f"vLLM {version}", datetime.now(), engine_chats(url), engine_completions(url))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
