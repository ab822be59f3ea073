"""Workers' own `/tokenize`: what they are asked, how long, and what is kept of their answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import web

from gateway import request as make_request
from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.request import InferenceRequest
from gateway.models.breaker import NUM_FAILURES, REST_S
from gateway.models.worker_tokenizer import (
    CACHE_ENTRY_BYTES,
    MAX_FRAME_TOKENS,
    QUARTER_S,
    WorkerTokenizer,
)
from gateway.requests.parsing import parse_request
from gateway.tokenization.prompt_encoder import PromptError
from tests.support.fakes import serve, url_of
from tests.support.patience import patience, until


def chat(model: str = "m", **fields: object) -> InferenceRequest:
    messages = [{"role": "user", "content": "hi"}]
    return make_request("/v1/chat/completions", {"model": model, "messages": messages, **fields})


def completion(prompt: object = "text", model: str = "m", **fields: object) -> InferenceRequest:
    return make_request("/v1/completions", {"model": model, "prompt": prompt, **fields})


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
async def test_no_tokens_are_an_error_unless_the_text_is_empty(server: TokenizeServer) -> None:
    """llama.cpp answers so where a body has not the field that it takes."""
    tokenizer = WorkerTokenizer(timeout_s=patience(20))
    server.answer = web.Response(body=b'{"tokens":[]}')
    chat = parse_request("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"a"}]}')
    for request in (completion("a"), completion(["", "a"]), chat):
        with pytest.raises(PromptError, match="made no tokens"):
            await tokenizer.ask(server.url, request, None)
    assert (await tokenizer.ask(server.url, completion(""), None)).num_tokens == 0
    assert tokenizer.counts["failed"] == 3
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
            with pytest.raises(PromptError, match="more tokens than the model accepts"):
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
    assert tokenizer.describe()["paused"] == [server.url]
    server.answer, now[0] = None, REST_S
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert (await tokenizer.ask(server.url, completion("a"), None)).num_tokens == 1
    assert tokenizer.counts == {"failed": NUM_FAILURES, "not_called": 3, "answered": 1, "cached": 1}
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
    assert slow.counts == {"late": NUM_FAILURES, "not_called": 1}
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


def test_calls_to_workers_are_described() -> None:
    none = {"calls": [], "budgets": [], "paused": []}
    assert WorkerTokenizer(timeout_s=1).describe() == {
        "entries": 0,
        "bytes": 0,
        "max_bytes": 64 << 20,
        **none,
    }


@pytest.mark.process
async def test_tokens_of_a_chat_are_known_until_a_day_may_end_somewhere(server: TokenizeServer) -> None:
    """The day that templates print ends at a whole quarter of an hour."""
    now = [QUARTER_S - 1.0]
    tokenizer = WorkerTokenizer(timeout_s=10, wall=lambda: now[0])
    for seconds, num_asked in ((0, 2), (0.9, 2), (1, 3), (QUARTER_S, 3), (QUARTER_S + 1, 4)):
        now[0] = QUARTER_S - 1.0 + seconds
        for request in (chat(), completion("a")):
            await tokenizer.ask(server.url, request, None)
        assert len(server.bodies) == num_asked
    await tokenizer.close()
