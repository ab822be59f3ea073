"""Prompt source: local tokenizers, workers' `/tokenize`, and prompts that cannot be tokenized."""

import json
from array import array
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import pytest

from gateway import request as make_request
from gateway.app import bundled_tokenizer
from gateway.core.blocks import Tokens, tokens_of
from gateway.core.decision import Prompt
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens
from gateway.models import template_trials
from gateway.models.prompt_source import (
    ANY_MODEL,
    MAX_DECODED_BYTES,
    MAX_PROMPTS,
    MAX_TOOLS,
    PromptSource,
)
from gateway.observability.metrics import Metrics
from gateway.requests.large_body import parse_large
from gateway.requests.parsing import parse_request
from gateway.tokenization.chat_template import MAX_PARTS, MediaError, TooCostly, TooLong
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from gateway.tokenization.sandbox.render_budget import hurry
from tests.support.fake_prompts import FakePrompts

NOON = datetime(2024, 5, 1, 12)
EMBED = {"model": "m", "input": "x"}


def source(**local: FakePrompts) -> tuple[PromptSource, Metrics]:
    """Token source of these tokenizers; keyword `any` is the tokenizer of every other model."""
    metrics = Metrics()
    named = {ANY_MODEL if name == "any" else name: cast(PromptEncoder, fake) for name, fake in local.items()}
    return PromptSource(named, metrics, clock=lambda zone: NOON), metrics


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


def test_tokenizers_are_described_by_model() -> None:
    local, _ = source(any=FakePrompts(1), m=FakePrompts(2))
    status = local.describe()
    assert status["models"] == [
        {"model": "all models", "rendering": "vllm", "encoder": "fake"},
        {"model": "m", "rendering": "vllm", "encoder": "fake"},
    ]
    assert status["conversations"] == {"entries": 0, "bytes": 0, "max_bytes": 64 << 20}


def test_tokens_are_decoded_where_there_is_a_tokenizer() -> None:
    local, _ = source(m=FakePrompts(1))
    assert local.decode("m", tokens_of([1, 2])) == "text of 2"
    assert local.decode("other", tokens_of([1])) is None


# Looks through all messages for each of them.
LOOKS_BACK = """{% for m in messages %}
{%- for j in range(loop.index0) %}{% set x = messages[j].role %}{% endfor %}
{{- '<|im_start|>' + m.role + (m.content or '') + '<|im_end|>' }}{% endfor %}"""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_chat_of_many_short_messages_is_left_to_a_thread(path: str) -> None:
    """Few bytes may be many messages, and a template that looks back each time takes their square."""
    prompts = PromptEncoder.load(bundled_tokenizer(), LOOKS_BACK)
    many, metrics = PromptSource({"m": prompts}, Metrics()), Metrics()
    num = many.max_inline_parts("m")
    assert 8 < num < 400

    def asked(num: int) -> InferenceRequest:
        body = {"model": "m", "max_tokens": 1, "messages": [ONE] * num}
        return parse_request(path, json.dumps(body).encode(), many.runs)

    few, more = asked(num // 2), asked(2 * num)
    assert not many.has_many_parts(few) and many.has_many_parts(more)
    hurry(True)
    try:
        assert many.tokenize(few).num_tokens > 0
        assert many.tokenize(more) == Prompt((), "failed") and more.is_whole
        assert many.max_inline_bytes("m") > 0  # other chats stay on the event loop
    finally:
        hurry(False)
    assert many.has_many_parts(more) and many.tokenize_long(more, 0).num_tokens > 0
    assert not metrics.prompt_failures["m"]


def test_a_known_chat_of_many_messages_costs_its_new_ones() -> None:
    """Where they do not continue it, a thread renders the whole."""
    source = PromptSource({"m": PromptEncoder.load(bundled_tokenizer(), LOOKS_BACK)}, Metrics())
    num = source.max_inline_parts("m")
    said = {"role": "assistant", "content": "a"}
    chat = [ONE, said] * num

    def asked(*more: dict[str, object]) -> InferenceRequest:
        body = json.dumps({"model": "m", "messages": [*chat, *more]}).encode()
        return parse_request("/v1/chat/completions", body, source.runs)

    source.tokenize_long(asked(ONE), 0)
    source.tokenize_long(asked({**ONE, "content": "b"}), 0)  # the first of its kind is checked
    source.tokenize_long(asked({**ONE, "content": "c"}), 0)  # and the second
    continued, odd = asked({**ONE, "content": "d"}), asked({**ONE, "content": "<|im_start|>"})
    assert not source.has_many_parts(continued) and not source.has_many_parts(odd)
    hurry(True)
    try:
        assert source.tokenize(continued).num_tokens > 0
        assert source.tokenize(odd) == Prompt((), "failed") and source.has_many_parts(odd)
    finally:
        hurry(False)
    assert source.tokenize_long(odd, 0).num_tokens > 0


def test_a_models_cut_points_are_proved_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer of the process nothing is proved while the model is loaded."""
    for program, expected in (
        (template_trials.PROOFS_PROGRAM, ("incremental", "proved in 2 settings")),
        ("import no_such_module", ("whole", "no setting is proved yet")),
    ):
        monkeypatch.setattr(template_trials, "PROOFS_PROGRAM", program)
        (model,) = PromptSource({"m": PromptEncoder.load(bundled_tokenizer())}, Metrics()).describe()[
            "models"
        ]
        (template,) = model["templates"]
        assert template["mode"] == expected[0] and expected[1] in template["reason"]
