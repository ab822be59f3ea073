"""Long prompts: recognized, and tokenized and hashed in a thread."""

import threading
from typing import cast

import pytest

from gateway import request as make_request
from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.models.offload import LongPrompts
from gateway.models.prompt_source import ANY_MODEL, MAX_INLINE_BYTES, PromptSource
from gateway.observability.metrics import Metrics
from gateway.tokenization.prompt_encoder import PromptEncoder
from tests.support.fake_prompts import FakePrompts


class FakePromptSource:
    """Makes three tokens of any prompt, and notes its thread."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def tokenize_long(self, request: InferenceRequest, max_tokens: int) -> Prompt:
        self.threads.append(threading.current_thread().name)
        return Prompt((tokens_of((1, 2, 3)),), "fake")


def completion(num_bytes: int) -> InferenceRequest:
    return make_request("/v1/completions", {"model": "m", "prompt": "x" * num_bytes})


@pytest.mark.parametrize("kind", MAX_INLINE_BYTES)
def test_the_length_of_a_long_prompt_depends_on_the_encoder(kind: str) -> None:
    fake = FakePrompts()
    fake.kind = kind
    long = LongPrompts(PromptSource({ANY_MODEL: cast(PromptEncoder, fake)}, Metrics()))
    assert not long.is_long(completion(MAX_INLINE_BYTES[kind] - 100))
    assert long.is_long(completion(MAX_INLINE_BYTES[kind] + 100))


async def test_tokens_and_hashes_are_made_in_a_thread() -> None:
    source, hashed = FakePromptSource(), list[tuple[str, Prompt]]()
    long = LongPrompts(cast(PromptSource, source))
    prompt = await long.ask(
        completion(1), lambda prompt: hashed.append((threading.current_thread().name, prompt))
    )
    assert prompt.num_tokens == 3
    (thread,) = source.threads
    assert thread.startswith("kvgate-prompt")
    assert hashed == [(thread, prompt)]
    long.close()


async def test_a_large_body_is_looked_into_in_a_thread() -> None:
    long, threads = LongPrompts(cast(PromptSource, FakePromptSource())), list[str]()

    def look() -> InferenceRequest:
        threads.append(threading.current_thread().name)
        return completion(1)

    assert (await long.beside(look)).model == "m"
    assert threads[0].startswith("kvgate-large")
    long.close()


async def test_a_worker_s_long_prompt_is_hashed_in_a_thread() -> None:
    long, hashed = LongPrompts(cast(PromptSource, FakePromptSource())), list[tuple[str, Prompt]]()
    prompt = Prompt((tokens_of((1, 2, 3)),), "worker")
    await long.hash(prompt, lambda prompt: hashed.append((threading.current_thread().name, prompt)))
    ((thread, of),) = hashed
    assert thread.startswith("kvgate-large") and of is prompt
    long.close()


async def test_after_closing_no_prompt_is_begun() -> None:
    long = LongPrompts(cast(PromptSource, FakePromptSource()))
    long.close()
    with pytest.raises(RuntimeError):
        await long.ask(completion(1), lambda prompt: None)
