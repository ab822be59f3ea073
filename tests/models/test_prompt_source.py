"""Prompt source: local tokenizers, workers' `/tokenize`, and prompts that cannot be tokenized."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, cast

import pytest
from aiohttp import web

from gateway import request as make_request
from gateway.apis.large_body import parse_large
from gateway.app import bundled_tokenizer
from gateway.core.blocks import Tokens, tokens_of
from gateway.core.decision import Prompt
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.rendering import VLLM
from gateway.core.requests.request import InferenceRequest, parse_request
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.models.breaker import NUM_FAILURES, REST_S
from gateway.models.prompt_source import (
    ANY_MODEL,
    CACHE_ENTRY_BYTES,
    MAX_DECODED_BYTES,
    MAX_FRAME_TOKENS,
    MAX_PROMPTS,
    MAX_TOOLS,
    PromptSource,
    WorkerTokenizer,
)
from gateway.observability.metrics import Metrics
from gateway.tokenization.chat_template import MAX_PARTS, MediaError, TooCostly, TooLong
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from gateway.tokenization.sandbox.render_budget import hurry
from tests.support.fakes import serve, url_of
from tests.support.patience import patience, until

NOON = datetime(2024, 5, 1, 12)
EMBED = {"model": "m", "input": "x"}


class FakePrompts:
    """A tokenizer that names its calls; `error` is raised instead."""

    kind = "fake"
    rendering = VLLM

    def __init__(self, *ids: int, error: str | None = None) -> None:
        self.ids, self.error = ids, error
        self.calls: list[tuple[str, Any]] = []

    def remember(self, runs: TokenRunCache, now: datetime, mismatch: Callable[[str], None]) -> None:
        self.runs, self.mismatch = runs, mismatch

    def describe(self) -> dict[str, Any]:
        return {"encoder": self.kind}

    def decode(self, tokens: Tokens) -> str:
        return f"text of {len(tokens)}"

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        self.calls.append(("chat", now))
        return ContinuedTokens(self._tokens())

    def expect(self, max_tokens: int) -> int:
        return 0

    def growing(self, body: Mapping[str, Any]) -> None:
        return None

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        self.calls.append(("completion", body["prompt"]))
        return [self._tokens(), self._tokens()]

    def _tokens(self) -> Tokens:
        if self.error:
            raise PromptError(self.error)
        return tokens_of(self.ids)


def source(**local: FakePrompts) -> tuple[PromptSource, Metrics]:
    """Token source of these tokenizers; keyword `any` is the tokenizer of every other model."""
    metrics = Metrics()
    named = {ANY_MODEL if name == "any" else name: cast(PromptEncoder, fake) for name, fake in local.items()}
    return PromptSource(named, metrics, clock=lambda: NOON), metrics


def chat(model: str = "m", **fields: object) -> InferenceRequest:
    messages = [{"role": "user", "content": "hi"}]
    return make_request("/v1/chat/completions", {"model": model, "messages": messages, **fields})


def completion(prompt: object = "text", model: str = "m", **fields: object) -> InferenceRequest:
    return make_request("/v1/completions", {"model": model, "prompt": prompt, **fields})


class Bounded(FakePrompts):
    """Tokenizer with tokens of four bytes at most, which counts its input."""

    def __init__(self) -> None:
        super().__init__(1)
        self.max_tokens, self.given = 0, 0

    def expect(self, max_tokens: int) -> int:
        self.max_tokens = max_tokens
        return 4 * max_tokens

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        num_bytes = len(body["prompt"].encode())
        self.given += num_bytes
        if num_bytes > 4 * self.max_tokens:
            raise TooLong(num_bytes // 4)
        return [self._tokens()]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a", "\\u0061", "\\ud83d\\ude00", "😀", "\\n"])
def test_a_text_too_long_by_its_bytes_is_rejected_without_its_middle(unit: str) -> None:
    bounded = Bounded()
    prompts, _ = source(any=bounded)
    body = ('{"model":"m","prompt":"' + unit * (8 << 20) + '"}').encode()
    with pytest.raises(TooLong):
        prompts.tokenize_long(parse_large("/v1/completions", body), 1 << 17)
    assert bounded.given < 7 << 20


@pytest.mark.parametrize("unit", ["a", "\\u0061", "\\ud83d\\ude00", "😀", "\\n"])
def test_a_text_that_just_fits_is_not_rejected(unit: str) -> None:
    prompts, _ = source(any=Bounded())
    num_bytes = len(json.loads(f'"{unit}"').encode())
    body = ('{"model":"m","prompt":"' + unit * ((2 << 20) // num_bytes) + '"}').encode()
    assert prompts.tokenize_long(parse_large("/v1/completions", body), 1 << 19).source == "fake"


def test_a_body_slow_to_decode_is_routed_by_load() -> None:
    prompts, metrics = source(any=FakePrompts(1))
    body = b'{"model":"m","prompt":"%b"}' % (b"a" * MAX_DECODED_BYTES)
    assert prompts.tokenize_long(parse_large("/v1/completions", body), 0).source == "failed"
    assert metrics.prompt_failures["m"] == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_prompt_of_very_many_tools_is_routed_by_load(path: str) -> None:
    """Rendering them would take a thread for a second."""
    metrics = Metrics()
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, metrics)
    named: dict[str, object] = {"name": "f", "input_schema": {"type": "object"}}
    tool = named if path == "/v1/messages" else {"type": "function", "function": {"name": "f"}}
    messages = [{"role": "user", "content": "hi"}]
    for num, failures in ((MAX_TOOLS, 0), (MAX_TOOLS + 1, 1)):
        body = {"model": "m", "messages": messages, "max_tokens": 1, "tools": [tool] * num}
        prompt = source.tokenize_long(parse_request(path, json.dumps(body).encode()), 0)
        assert (prompt.num_tokens == 0, metrics.prompt_failures["m"]) == (bool(failures), failures)


ONE = {"role": "user", "content": "hi"}
CALLED = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
USED = {"type": "tool_use", "id": "a", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("path", "field", "first", "more"),
    [
        ("/v1/chat/completions", "messages", ONE, ONE),
        ("/v1/messages", "messages", ONE, ONE),
        ("/v1/messages", "messages", ONE, {"role": "assistant", "content": [USED]}),
        ("/v1/responses", "input", ONE, CALLED),
    ],
)
def test_a_chat_of_very_many_messages_is_routed_by_load(
    path: str, field: str, first: dict[str, object], more: dict[str, object]
) -> None:
    metrics = Metrics()
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, metrics)
    for num, failures in ((MAX_PARTS, 0), (MAX_PARTS + 1, 1)):
        body = {"model": "m", field: [first, *[more] * (num - 1)], "max_tokens": 1}
        prompt = source.tokenize_long(parse_request(path, json.dumps(body).encode()), 0)
        assert (prompt.num_tokens == 0, metrics.prompt_failures["m"]) == (bool(failures), failures)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/chat/completions", {"type": "text", "text": "a"}),
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "a"}}),
        ("/v1/messages", {"type": "text", "text": "a"}),
        ("/v1/messages", {"type": "tool_result", "tool_use_id": "a", "content": [{}] * 10}),
    ],
)
def test_a_message_of_very_many_parts_is_routed_by_load(path: str, part: dict[str, object]) -> None:
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, Metrics())
    message = {"role": "user", "content": [part] * (MAX_PARTS + 1)}
    body = json.dumps({"model": "m", "messages": [message], "max_tokens": 1}).encode()
    with pytest.raises(PromptError, match="more than 4,096 parts"):
        source.made_by(source._local["m"], parse_request(path, body))  # type: ignore[arg-type]


def test_a_large_chat_that_continues_nothing_after_all_takes_a_thread() -> None:
    metrics = Metrics()
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, metrics)
    lead, odd = [{"role": "system", "content": "word " * 20_000}, ONE], {**ONE, "content": "<|im_start|>"}
    answered = [*lead, {"role": "assistant", "content": "a"}]

    def parsed(*messages: dict[str, object]) -> InferenceRequest:
        return parse_request(
            "/v1/chat/completions", json.dumps({"model": "m", "messages": messages}).encode(), source.runs
        )

    assert source.tokenize_long(parsed(*answered, ONE), 0).num_tokens > 0
    request = parsed(*answered, odd)
    assert request.num_new_bytes < 1000
    hurry(True)
    try:
        assert source.tokenize(request) == Prompt((), "failed")
    finally:
        hurry(False)
    assert request.num_new_bytes == len(request.body) and not metrics.prompt_failures["m"]
    assert source.tokenize_long(request, 0).num_tokens > 0


def test_a_body_of_an_agent_is_judged_by_its_own_length() -> None:
    """A thread is taken by that, and not by what is known of the chat that it becomes."""
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, Metrics())
    said = [ONE, {"role": "assistant", "content": "a"}, {**ONE, "content": "<|im_start|>"}]
    hurry(True)
    try:
        for messages in (said[:1], said):
            body = {"model": "m", "max_tokens": 1, "system": "word " * 20_000, "messages": messages}
            request = parse_request("/v1/messages", json.dumps(body).encode())
            assert source.tokenize(request).num_tokens > 0
    finally:
        hurry(False)


@pytest.mark.parametrize("each", ["a", [1]])
def test_very_many_prompts_of_one_request_are_routed_by_load(each: object) -> None:
    """They are not looked up one by one, nor sent to a worker's `/tokenize` one by one."""
    prompts, metrics = source(any=FakePrompts(1))
    others, _ = source()
    most, more = completion([each] * MAX_PROMPTS), completion([each] * (MAX_PROMPTS + 1))
    assert len(prompts.tokenize(most).tokens) > 0 and metrics.prompt_failures["m"] == 0
    assert prompts.tokenize(more) == Prompt((), "failed") and metrics.prompt_failures["m"] == 1
    assert (others.is_local(most), others.is_local(more)) == (each != "a", True)


def test_token_ids_over_the_limit_are_rejected_by_their_number() -> None:
    prompts, _ = source(any=FakePrompts(1))
    request = parse_large("/v1/completions", b'{"model":"m","prompt":[%b1]}' % (b"1," * (1 << 20)))
    with pytest.raises(TooLong) as refused:
        prompts.tokenize_long(request, 1 << 20)
    assert refused.value.num_tokens == (1 << 20) + 1


# local -----------------------------------------------------------------------------------------


def test_a_models_own_tokenizer_precedes_the_one_for_all() -> None:
    own, other = FakePrompts(1, 2), FakePrompts(9)
    prompts, _ = source(m=own, any=other)
    assert prompts.tokenize(chat()) == Prompt((array("I", [1, 2]),), "fake")
    assert prompts.tokenize(chat("n")).tokens == (array("I", [9]),)
    assert own.calls == [("chat", NOON)]
    assert (prompts.has_local("m"), prompts.has_local("n")) == (True, True)


def test_a_chat_that_is_split_already_is_not_decoded_again() -> None:
    def decode(body: bytes) -> dict[str, Any]:
        raise AssertionError("decoded")

    request, (prompts, _) = chat(), source(m=FakePrompts(1))
    request.decode = decode
    assert prompts.is_local(request) and prompts.tokenize(request).num_tokens == 1


def test_a_completion_may_have_several_prompts() -> None:
    own = FakePrompts(1, 2, 3)
    prompts, _ = source(m=own)
    assert prompts.tokenize(completion(["a", "b"])).num_tokens == 6
    assert own.calls == [("completion", ["a", "b"])]


def test_without_a_tokenizer_the_prompt_is_empty_without_a_failure() -> None:
    prompts, metrics = source(m=FakePrompts(1))
    assert prompts.tokenize(chat("n")) == Prompt()
    assert not prompts.has_local("n")
    assert not metrics.prompt_failures


@pytest.mark.parametrize(
    ("prompt", "lists"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])], ids=["one", "several"]
)
def test_token_ids_need_no_tokenizer(prompt: object, lists: list[list[int]]) -> None:
    prompts, _ = source()
    assert prompts.tokenize(completion(prompt)) == Prompt(tuple(map(tokens_of, lists)), "ids")


def test_only_a_completion_has_token_ids_for_a_prompt() -> None:
    """A chat may carry any further field; the engine takes its messages."""
    prompts, _ = source(m=FakePrompts(7))
    assert prompts.tokenize(chat(prompt=[1, 2, 3])).tokens == (array("I", [7]),)
    without, _ = source()
    assert not without.is_local(chat(prompt=[1, 2, 3]))


class Costly(FakePrompts):
    """Tokenizer with a template that takes too much."""

    def __init__(self, *, is_fault: bool = True, is_inline: bool = False) -> None:
        super().__init__()
        self.cost = TooCostly("chat template: too much", is_fault, is_inline)

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        raise self.cost


def test_a_tokenizer_at_fault_is_refused_for_all_its_models() -> None:
    costly = Costly()
    prompts, _ = source(m=costly, n=costly, o=FakePrompts(1))
    refused: list[tuple[object, str]] = []
    prompts.refuse = lambda prompts, why: refused.append((prompts, why))
    assert prompts.tokenize(chat()).source == "failed"
    assert refused == [(costly, "chat template: too much")]
    assert [prompts.has_local(model) for model in "mno"] == [False, False, True]


def test_a_template_that_is_slow_is_rendered_in_threads_from_then_on() -> None:
    slow = Costly(is_fault=False, is_inline=True)
    prompts, _ = source(m=slow, o=FakePrompts(1))
    assert prompts.max_inline_bytes("m") > 0
    assert prompts.tokenize(chat()).source == "failed"
    assert (prompts.max_inline_bytes("m"), prompts.has_local("m")) == (-1, True)
    assert prompts.max_inline_bytes("o") > 0


def test_a_prompt_that_is_too_much_for_a_thread_is_routed_by_load() -> None:
    prompts, metrics = source(m=Costly(is_fault=False))
    assert prompts.tokenize(chat()).source == "failed"
    assert (prompts.max_inline_bytes("m") > 0, prompts.has_local("m")) == (True, True)
    assert metrics.prompt_failures["m"] == 1


def test_tokenizers_are_replaced_by_set_all() -> None:
    """A model with None is tokenized by its workers, even if a tokenizer serves every other model."""
    prompts, _ = source(m=FakePrompts(1))
    prompts.set_all({ANY_MODEL: cast(PromptEncoder, FakePrompts(2)), "n": None})
    assert [prompts.tokenize(chat(model)).num_tokens for model in ("m", "n", "o")] == [1, 0, 1]
    assert not prompts.is_local(chat("n"))


def test_a_route_without_a_prompt_has_no_tokens() -> None:
    prompts, _ = source(m=FakePrompts(1))
    assert prompts.tokenize(make_request("/v1/embeddings", EMBED)) == Prompt()


def test_chats_and_texts_without_a_tokenizer_require_a_worker() -> None:
    prompts, _ = source(m=FakePrompts(1))
    assert prompts.is_local(chat("m"))
    assert prompts.is_local(completion([1], "n"))
    assert prompts.is_local(make_request("/v1/embeddings", EMBED | {"model": "n"}))
    assert not prompts.is_local(chat("n"))
    assert not prompts.is_local(completion("text", "n"))


# images ----------------------------------------------------------------------------------------


def test_a_chat_with_images_has_tokens_before_them_and_links_behind() -> None:
    class Looking(FakePrompts):
        def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
            raise MediaError("an image")

        def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
            return self._tokens()

    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]
    prompts, metrics = source(m=Looking(1, 2), n=Looking(), o=Looking(error="no template"))
    found = prompts.tokenize(chat(messages=messages))
    assert (found.tokens, found.source, metrics.prompt_failures) == ((array("I", [1, 2]),), BEFORE_MEDIA, {})
    assert found.links is not None and len(found.links.hashes) == 2
    assert prompts.tokenize(chat(messages=messages, cache_salt="s")).links != found.links
    for model, source_ in (("n", BEFORE_MEDIA), ("o", "failed")):
        without = prompts.tokenize(chat(model, messages=messages))
        assert without.links is not None
        assert (without.tokens, without.source, len(without.links.hashes)) == ((), source_, 2)


# failures --------------------------------------------------------------------------------------


def test_a_failed_prompt_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    prompts, metrics = source(m=FakePrompts(error="no images"))
    assert [prompts.tokenize(chat()), prompts.tokenize(chat())] == [Prompt((), "failed")] * 2
    assert metrics.prompt_failures == {"m": 2}
    (record,) = caplog.records
    assert record.getMessage() == "model m: a prompt could not be tokenized (no images); routed by load only"


def test_messages_of_foreign_code_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A chat template may quote the prompt in its error."""

    class Quoting(FakePrompts):
        def _tokens(self) -> Tokens:
            raise PromptError("bad: my secret", foreign="ValueError")

    prompts, _ = source(m=Quoting())
    assert prompts.tokenize(chat()).source == "failed"
    assert "ValueError in the template or tokenizer" in caplog.text
    assert "my secret" not in caplog.records[0].getMessage()


def test_each_model_is_logged_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    prompts, metrics = source()
    for model, reason in [("m", "a"), ("m", "b"), ("n", "a"), ("m", "a")]:
        prompts.failed(model, reason)
    assert len(caplog.records) == 2
    assert metrics.prompt_failures == {"m": 3, "n": 1}


def test_endless_reasons_fill_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    prompts, metrics = source()
    for i in range(1500):
        prompts.failed("m", f"reason {i}")
    assert len(caplog.records) == 1
    assert metrics.prompt_failures["m"] == 1500


def test_a_failed_check_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    own = FakePrompts(1)
    prompts, metrics = source(m=own)
    assert own.runs is prompts.runs
    own.mismatch("Template(x)")
    assert metrics.prompt_mismatches == {"m": 1}
    assert "conversations of Template(x) are rendered whole" in caplog.text


# at a worker -----------------------------------------------------------------------------------


class TokenizeServer:
    """Answers /tokenize with `answer`, or by its text's length; `gate` holds answers back."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.answer: web.Response | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        await self.gate.wait()
        if answer := self.answer:
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        text = body.get("prompt", "chat")
        return web.json_response({"count": len(text), "max_model_len": 9, "tokens": list(range(len(text)))})


@pytest.fixture
async def server() -> AsyncIterator[TokenizeServer]:
    fake = TokenizeServer()
    running = await serve(web.post("/tokenize", fake.handle))
    fake.url = url_of(running)
    yield fake
    fake.gate.set()
    await running.close()


@pytest.fixture
async def tokenizer() -> AsyncIterator[WorkerTokenizer]:
    asking = WorkerTokenizer(timeout_s=10)
    yield asking
    await asking.close()


@pytest.mark.process
async def test_a_chat_is_asked_with_the_fields_that_make_the_prompt(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = chat(tools=tools, temperature=1, stream=True, chat_template_kwargs={"k": 1}, user="u")
    prompt = await tokenizer.ask(server.url, request, "Bearer k")
    assert prompt == Prompt((tokens_of(range(4)),), "worker")
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": tools,
            "chat_template_kwargs": {"k": 1},
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer k"
    assert server.headers[0]["content-type"] == "application/json"


@pytest.mark.process
async def test_a_worker_tokenizes_a_chat_with_an_image_up_to_the_image(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for content, source_ in (([image], BEFORE_MEDIA), ([{"type": "text", "text": "hi"}], "worker")):
        request = chat(messages=[{"role": "user", "content": content}])
        assert (await tokenizer.ask(server.url, request, None)).source == source_


@pytest.mark.process
async def test_a_completion_is_asked_prompt_by_prompt(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    prompt = await tokenizer.ask(server.url, completion(["a", "bcd"]), None)
    assert [len(tokens) for tokens in prompt.tokens] == [1, 3]
    await tokenizer.ask(server.url, completion("xyz", add_special_tokens=False), None)
    assert server.bodies == [
        {"model": "m", "prompt": "a", "add_special_tokens": True},
        {"model": "m", "prompt": "bcd", "add_special_tokens": True},
        {"model": "m", "prompt": "xyz", "add_special_tokens": False},
    ]
    assert "authorization" not in server.headers[0]


@pytest.mark.process
async def test_an_answered_prompt_is_cached(server: TokenizeServer, tokenizer: WorkerTokenizer) -> None:
    for request in (completion("a"), completion("a"), completion("a", temperature=1), completion("a", "n")):
        await tokenizer.ask(server.url, request, None)
    assert [body["model"] for body in server.bodies] == ["m", "n"]


@pytest.mark.process
async def test_the_cache_is_bounded_and_the_least_used_goes_first(server: TokenizeServer) -> None:
    tokenizer = WorkerTokenizer(timeout_s=10, max_cache_bytes=2 * (CACHE_ENTRY_BYTES + 4))
    for text in "abacab":
        await tokenizer.ask(server.url, completion(text), None)
    assert [body["prompt"] for body in server.bodies] == ["a", "b", "c", "b"]
    await tokenizer.close()


@pytest.mark.process
async def test_an_answer_larger_than_the_cache_is_not_cached(server: TokenizeServer) -> None:
    tokenizer = WorkerTokenizer(timeout_s=10, max_cache_bytes=100)
    for _ in range(2):
        assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert len(server.bodies) == 2
    await tokenizer.close()


@pytest.mark.process
async def test_equal_requests_in_flight_count_once_in_the_cache(server: TokenizeServer) -> None:
    """Counted twice, the cache would shrink with each burst, to nothing in the end."""
    tokenizer = WorkerTokenizer(timeout_s=10, max_cache_bytes=2 * (CACHE_ENTRY_BYTES + 4))
    await asyncio.gather(*(tokenizer.ask(server.url, completion("a"), None) for _ in range(8)))
    await tokenizer.ask(server.url, completion("b"), None)
    num_asked = len(server.bodies)
    for text in "ab":
        await tokenizer.ask(server.url, completion(text), None)
    assert len(server.bodies) == num_asked
    await tokenizer.close()


@pytest.mark.process
async def test_the_deadline_is_one_for_all_prompts_of_a_request(server: TokenizeServer) -> None:
    tokenizer = WorkerTokenizer(timeout_s=0.2)
    server.gate.clear()
    with pytest.raises(PromptError, match="did not answer in time"):
        await tokenizer.ask(server.url, completion(["a", "b", "c"]), None)
    assert len(server.bodies) == 1
    server.gate.set()
    await tokenizer.close()


@pytest.mark.process
async def test_a_worker_gets_the_time_that_it_takes(server: TokenizeServer) -> None:
    """A late answer doubles it; a restarted process starts from the beginning."""
    now = [0.0]

    def clock() -> float:
        now[0] += 5.0  # an answer takes one reading of the clock, or a few
        return now[0]

    tokenizer = WorkerTokenizer(timeout_s=100, clock=clock)

    def wait_s() -> list[float]:
        return [budget["wait_s"] for budget in tokenizer.describe()["budgets"]]

    assert wait_s() == []
    for number in range(20):
        await tokenizer.ask(server.url, completion(f"{number}"), None)
    (learnt_s,) = wait_s()
    assert 5 < learnt_s < 25
    await tokenizer.close()
    slow = WorkerTokenizer(timeout_s=0.4)
    server.gate.clear()
    with pytest.raises(PromptError, match="in time"):
        await slow.ask(server.url, completion("a"), None)
    assert [budget["wait_s"] for budget in slow.describe()["budgets"]] == [0.2]
    slow.forget(server.url)
    assert slow.describe()["budgets"] == []
    server.gate.set()
    await slow.close()


@pytest.mark.process
async def test_a_late_answer_is_learnt_and_remembered(server: TokenizeServer) -> None:
    """The prompt that was late is known the next time, and its true time counts."""
    tokenizer = WorkerTokenizer(timeout_s=patience(20))
    for _ in range(3):
        tokenizer.learn(server.url, 0.0001, 100)
    server.gate.clear()
    with pytest.raises(PromptError, match="in time"):
        await tokenizer.ask(server.url, completion("a"), None)
    waited_s = tokenizer.describe()["budgets"][0]["wait_s"]
    server.gate.set()
    await until(lambda: tokenizer.counts["answered"] == 1, "the late answer came")
    assert tokenizer.describe()["budgets"][0]["wait_s"] >= waited_s / 2
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert tokenizer.counts == {"late": 1, "answered": 1, "cached": 1}
    await tokenizer.close()


@pytest.mark.process
async def test_late_answers_of_a_worker_that_left_are_not_remembered(server: TokenizeServer) -> None:
    tokenizer = WorkerTokenizer(timeout_s=patience(20))
    tokenizer.learn(server.url, 0.0001, 100)
    server.gate.clear()
    with pytest.raises(PromptError, match="in time"):
        await tokenizer.ask(server.url, completion("a"), None)
    tokenizer.forget(server.url)
    server.gate.set()
    await tokenizer.ask(server.url, completion("b"), None)
    assert tokenizer.counts == {"late": 1, "answered": 1}
    await tokenizer.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=404, body=b"{}"), "answered 404"),
        (web.Response(status=302, headers={"location": "/elsewhere"}), "answered 302"),
        (web.Response(body=b"<html>"), "failed: DecodeError"),
        (web.Response(body=b'{"count": 3}'), "failed: ValidationError"),
        (web.Response(body=json.dumps({"tokens": [-1]}).encode()), "failed: ValidationError"),
        (web.Response(body=json.dumps({"tokens": [1 << 32]}).encode()), "failed: ValidationError"),
        (web.Response(body=json.dumps({"tokens": [1], "count": 2}).encode()), "failed: ValueError"),
        (web.Response(body=b"[" * 200_000), "failed: "),
    ],
    ids=["no route", "redirect", "no JSON", "no tokens", "negative", "too large", "another count", "deep"],
)
async def test_an_invalid_answer_is_an_error_and_not_cached(
    server: TokenizeServer, tokenizer: WorkerTokenizer, answer: web.Response, words: str
) -> None:
    server.answer = answer
    with pytest.raises(PromptError, match=words):
        await tokenizer.ask(server.url, completion("a"), None)
    server.answer = None
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1


@pytest.mark.process
async def test_an_answer_of_more_tokens_than_the_prompt_has_bytes_is_a_failure(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    """Reading ends with the bytes that as many tokens can take."""
    text = "a" * 100
    for num, words in ((MAX_FRAME_TOKENS + 100, ""), (MAX_FRAME_TOKENS + 1000, "Val"), (1 << 20, "Val")):
        server.answer = web.Response(body=json.dumps({"tokens": [1] * num}).encode())
        if words:
            with pytest.raises(PromptError, match=f"failed: {words}"):
                await tokenizer.ask(server.url, completion(text), None)
        else:
            assert (await tokenizer.ask(server.url, completion(text), None)).num_tokens == num
            tokenizer.forget()
    assert tokenizer.counts == {"answered": 1, "failed": 2}


@pytest.mark.process
async def test_a_prompt_of_more_tokens_than_the_model_takes_is_unknown(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    """Each time, cached or not; an honest worker answers so, too, and goes on being asked."""
    for most in (4, 4, 5, 0):
        if most == 4:
            with pytest.raises(PromptError, match="more tokens than the model takes"):
                await tokenizer.ask(server.url, completion("abcde"), None, max_tokens=most)
        else:
            assert (await tokenizer.ask(server.url, completion("abcde"), None, max_tokens=most)).num_tokens
    assert tokenizer.counts == {"answered": 1, "cached": 3}


@pytest.mark.process
async def test_an_unreachable_worker_is_an_error(server: TokenizeServer, tokenizer: WorkerTokenizer) -> None:
    with pytest.raises(PromptError, match="failed: ClientConnectorError"):
        await tokenizer.ask("http://127.0.0.1:9", completion("a"), None)


@pytest.mark.process
async def test_a_worker_that_fails_repeatedly_is_not_asked_for_a_while(server: TokenizeServer) -> None:
    now = [0.0]
    tokenizer = WorkerTokenizer(timeout_s=10, clock=lambda: now[0])
    server.answer = web.Response(status=503)
    for number in range(NUM_FAILURES + 3):
        words = "answered 503" if number < NUM_FAILURES else "not called for a while"
        with pytest.raises(PromptError, match=words):
            await tokenizer.ask(server.url, completion(f"{number}"), None)
    assert len(server.bodies) == NUM_FAILURES
    assert (tokenizer.is_resting(server.url), tokenizer.is_resting("http://other")) == (True, False)
    assert tokenizer.describe()["left_alone"] == [server.url]
    server.answer, now[0] = None, REST_S
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert tokenizer.counts == {"failed": NUM_FAILURES, "not asked": 3, "answered": 1, "cached": 1}
    await tokenizer.close()


@pytest.mark.process
async def test_a_slow_worker_is_not_asked_for_a_while_but_client_errors_do_not_count(
    server: TokenizeServer,
) -> None:
    tokenizer = WorkerTokenizer(timeout_s=10)
    server.answer = web.Response(status=400)
    for number in range(3 * NUM_FAILURES):
        with pytest.raises(PromptError, match="answered 400"):
            await tokenizer.ask(server.url, completion(f"{number}"), None)
    await tokenizer.close()
    slow = WorkerTokenizer(timeout_s=0.01)
    server.gate.clear()
    for number in range(NUM_FAILURES):
        with pytest.raises(PromptError, match="in time"):
            await slow.ask(server.url, completion(f"{number}"), None)
    with pytest.raises(PromptError, match="not called for a while"):
        await slow.ask(server.url, completion("a"), None)
    assert slow.counts == {"late": NUM_FAILURES, "not asked": 1}
    slow.forget(server.url)  # a restarted process
    assert not slow.is_resting(server.url)
    server.gate.set()
    await slow.close()


@pytest.mark.process
async def test_cached_tokens_are_dropped_where_they_may_have_changed(
    server: TokenizeServer, tokenizer: WorkerTokenizer
) -> None:
    await tokenizer.ask(server.url, completion("a"), None)
    tokenizer.forget()
    assert tokenizer.describe()["bytes"] == 0
    await tokenizer.ask(server.url, completion("a"), None, "served-name")
    assert [body["model"] for body in server.bodies] == ["m", "served-name"]


async def test_closing_an_unused_tokenizer_is_no_error() -> None:
    await WorkerTokenizer(timeout_s=1).close()


def test_tokenizers_are_described_by_model() -> None:
    local, _ = source(any=FakePrompts(1), m=FakePrompts(2))
    status = local.describe()
    assert status["models"] == [
        {"model": "all models", "rendering": "vllm", "encoder": "fake"},
        {"model": "m", "rendering": "vllm", "encoder": "fake"},
    ]
    assert status["conversations"] == {"entries": 0, "bytes": 0, "max_bytes": 64 << 20}


def test_calls_to_workers_are_described() -> None:
    none = {"calls": [], "budgets": [], "left_alone": []}
    assert WorkerTokenizer(timeout_s=1).describe() == {
        "entries": 0,
        "bytes": 0,
        "max_bytes": 64 << 20,
        **none,
    }


def test_tokens_are_decoded_where_there_is_a_tokenizer() -> None:
    local, _ = source(m=FakePrompts(1))
    assert local.decode("m", tokens_of([1, 2])) == "text of 2"
    assert local.decode("other", tokens_of([1])) is None
