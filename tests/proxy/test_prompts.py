"""Tokens of a prompt: their source, and the result of a failure."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.decode_errors import LARGE
from gateway.core.errors import UnknownModel
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.worker import WorkerId
from gateway.models.offload import MAX_INLINE_TOKENS, LongPrompts
from gateway.models.prompt_source import PromptSource
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.proxy.prompts import Prompts
from gateway.requests.large_body import decode_large, parse_large
from gateway.requests.parsing import parse_request
from gateway.tokenization.prompt_encoder import MAX_WHOLE_BYTES, PromptError
from tests.support.worlds.exchanges import ExchangeWorld


class Failing:
    """Worker tokenizer that raises `error`; `resting` are the workers that failed lately."""

    def __init__(self, error: Exception, *resting: str) -> None:
        self.error = error
        self.resting = resting
        self.asked: list[str] = []

    def is_resting(self, url: str) -> bool:
        return url in self.resting

    async def ask(self, url: str, *args: object) -> Any:
        self.asked.append(url)
        raise self.error


def request(model: str = "m") -> InferenceRequest:
    top = {"model": model, "prompt": "x"}
    return InferenceRequest(RouteKind.COMPLETION, "/v1/completions", b"{}", top)


def prompts(monkeypatch: pytest.MonkeyPatch, tokenizer: Failing) -> Prompts:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2")
    monkeypatch.setattr(PromptSource, "is_local", lambda self, request: False)
    made = Prompts(world.context.prompts.source, world.router, cast(WorkerTokenizer, tokenizer))
    assert made.takes_time(request())
    return made


@pytest.mark.parametrize(("error", "note"), [(PromptError("no"), ""), (ZeroDivisionError(), "Traceback")])
async def test_a_prompt_that_cannot_be_tokenized_is_empty(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, note: str
) -> None:
    prompt = await prompts(monkeypatch, Failing(error)).known_of(request(), b"k", "7")
    assert prompt.num_tokens == 0
    assert note in caplog.text


async def test_an_unknown_model_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModel):
        await prompts(monkeypatch, Failing(PromptError("no"))).known_of(request("none"), None, "7")


async def test_a_worker_that_failed_lately_is_skipped_while_another_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Failing(PromptError("no"), "http://w:1")
    made = prompts(monkeypatch, tokenizer)
    for _ in range(10):
        await made.known_of(request(), None, "7")
    assert set(tokenizer.asked) == {"http://w:2"}
    tokenizer.resting = ("http://w:1", "http://w:2")
    await made.known_of(request(), None, "7")
    assert len(tokenizer.asked) == 11


class Answering(Failing):
    """Worker tokenizer that answers with two tokens, or `num`."""

    num = 2

    async def ask(self, url: str, *args: object) -> Any:
        self.asked.append(url)
        return Prompt((tokens_of(range(1, 1 + self.num)),), "worker")


@pytest.mark.parametrize("is_mixed", [True, False])
async def test_a_worker_s_tokens_are_those_of_its_rendering_only(
    monkeypatch: pytest.MonkeyPatch, is_mixed: bool
) -> None:
    tokenizer = Answering(PromptError("no"), "http://w:2")
    made, sglang = prompts(monkeypatch, tokenizer), Rendering("sglang", (0, 5, 23))
    fleet = made._router.fleet
    if is_mixed:
        member = fleet.get(WorkerId("w:2"))
        assert member is not None
        fleet.add(replace(member.worker, rendering=sglang))
    prompt = await made.of(request(), None)
    assert prompt.rendered_by(VLLM).num_tokens == 2
    assert prompt.rendered_by(sglang).num_tokens == (0 if is_mixed else 2)


@pytest.mark.parametrize("num", [MAX_INLINE_TOKENS, MAX_INLINE_TOKENS + 1])
async def test_a_long_prompt_of_a_worker_is_hashed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, num: int
) -> None:
    hashed: list[int] = []

    async def note(self: LongPrompts, prompt: Prompt, hash_ahead: Callable[[Prompt], None]) -> None:
        hashed.append(prompt.num_tokens)

    monkeypatch.setattr(LongPrompts, "hash", note)
    tokenizer = Answering(PromptError("no"))
    tokenizer.num = num
    assert (await prompts(monkeypatch, tokenizer).of(request(), None)).num_tokens == num
    assert hashed == [num][: num > MAX_INLINE_TOKENS]


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/completions", {"prompt": "a" * LARGE}), ("/v1/responses", {"input": "a" * LARGE})],
)
async def test_a_large_body_is_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    """A worker makes its tokens, so that the gateway has to split it for `/tokenize`."""
    given = parse_large(path, json.dumps({"model": "m", **fields}).encode())
    beside: list[bool] = []
    is_beside = False

    async def look_beside(self: LongPrompts, look: Callable[[], InferenceRequest]) -> InferenceRequest:
        nonlocal is_beside
        is_beside = True
        found = look()
        is_beside = False
        return found

    def decode(body: bytes) -> dict[str, Any]:
        beside.append(is_beside)
        return decode_large(body)

    given.decode = decode
    monkeypatch.setattr(LongPrompts, "beside", look_beside)
    assert (await prompts(monkeypatch, Answering(PromptError("no"))).of(given, None)).num_tokens == 2
    assert beside == [True]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_large_chat_with_known_messages_may_take_a_thread(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """They may be of no use, and the event loop does not render the whole."""
    made = ExchangeWorld(monkeypatch, "w:1").context.prompts
    monkeypatch.setattr(PromptSource, "is_local", lambda self, request: True)
    monkeypatch.setattr(LongPrompts, "is_long", lambda self, request: False)
    messages = [{"role": "user", "content": "a" * MAX_WHOLE_BYTES}, {"role": "user", "content": "b"}]
    known = Everything() if is_known else frozenset[bytes]()
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert made.takes_time(parse_request("/v1/chat/completions", body, known)) is is_known


class Everything:
    def __contains__(self, name: object) -> bool:
        return True
