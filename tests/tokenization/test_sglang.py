"""Chats and completions as SGLang renders them. The oracle is its own code: digests of its prompts of the
corpus, of the newest version and of one before most changes (`python -m tests.sglang.test_prompts` writes
them)."""

import json
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import CHAT
from gateway.core.token_runs import TokenRunCache
from gateway.requests.parsing import parse_request
from gateway.tokenization.chat_template import MediaError
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.sglang import SglangEncoder
from tests.support import corpus
from tests.support.corpus import (
    CHATS,
    COMPLETIONS,
    SGLANG_VERSIONS,
    TEMPLATE_NAMES,
    TOOLS,
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
from tests.support.sglang_encoders import NEW, OLD, TOKENIZER, load_encoder, version_of

NOW = datetime(2024, 7, 26)


def ours(prompts: SglangEncoder, body: Body, now: datetime) -> str:
    try:
        return digest(prompts.chat(body, now))
    except PromptError:
        return "-"


# the engine's own prompts


@pytest.mark.slow
@pytest.mark.parametrize("version", SGLANG_VERSIONS)
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_chats_are_the_engine_s(template: str, version: str) -> None:
    golden, prompts = corpus.sglang_golden(version), load_encoder(template, version_of(version))
    reported = list(zip(CHATS, golden.chats[template], strict=True))
    answered = [(body, theirs) for body, theirs in reported if theirs != "-"]
    assert len(answered) > 100
    wrong = [body for body, theirs in answered if theirs != ours(prompts, body, golden.asked_at)]
    assert [corpus.name_of(body) for body in wrong] == []


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_chats_that_the_engine_rejects_have_no_prompt(template: str) -> None:
    golden, prompts = corpus.sglang_golden("0.5.23"), load_encoder(template)
    reported = zip(CHATS, golden.chats[template], strict=True)
    wrong = [body for body, theirs in reported if theirs == "-" != ours(prompts, body, golden.asked_at)]
    assert [corpus.name_of(body) for body in wrong] == []


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_completions_are_the_engine_s(version: str) -> None:
    prompts = load_encoder("chatml", version_of(version))
    reported = zip(COMPLETIONS, corpus.sglang_golden(version).completions, strict=True)
    wrong = [body for body, theirs in reported if corpus.digest_all(prompts.completion(body)) != theirs]
    assert [corpus.name_of(body) for body in wrong] == []


# conversations that continue


def as_request(body: Body, known: TokenRunCache) -> InferenceRequest:
    return parse_request(CHAT, msgspec.json.encode({"model": "m", **body}), known)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_a_conversation_that_grows_has_the_tokens_of_the_whole(template: str) -> None:
    prompts, plain, runs = load_encoder(template), load_encoder(template), TokenRunCache()
    prompts.remember(runs, NOW, pytest.fail)
    thought = {"reasoning_content": "Hm.", "tool_calls": [call("now", '{"a": 1}')]}
    turns = [user("a"), assistant("b"), user([text_part("c"), text_part("d")]), assistant("", **thought)]
    turns += [answer([text_part("e"), text_part("f")]), assistant("g"), user("h"), assistant("i"), user("j")]
    for tools in ({}, {"tools": TOOLS[:2]}, {"tools": TOOLS[:2], "tool_choice": "none"}):
        for num in [*range(1, len(turns) + 1)] * 2:
            body = (
                chat(system("s"), *turns[:num], **tools)
                if template != "gemma"
                else chat(*turns[:num], **tools)
            )
            request = as_request(body, runs)
            try:
                expected = plain.chat(body, NOW)
            except PromptError:
                continue
            assert prompts.tokens(request, NOW).tokens == expected, corpus.name_of(body)


def test_a_grown_conversation_costs_only_its_new_messages() -> None:
    prompts, runs = load_encoder("qwen3"), TokenRunCache()
    prompts.remember(runs, NOW, pytest.fail)
    called = assistant("", tool_calls=[call("now", '{"a": 1}')])
    turns = [system("s"), user("a"), called, answer("b"), assistant("c"), user("d")]
    assert prompts.tokens(as_request(chat(*turns), runs), NOW).run is not None
    more = as_request(chat(*turns, assistant("e"), user("f")), runs)
    assert prompts.tokens(more, NOW).run is not None
    (template,) = prompts.describe()["templates"]
    assert template["mode"] == "incremental"


# what is not rendered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": "hi"}, "not a list"),
        ({"messages": ["text"]}, "no role"),
        (chat(), "empty"),
        (chat({"role": "user"}), "no content"),
        (chat({"role": "critic", "content": "x"}), "role that SGLang does not know"),
        (chat(user(5)), "neither text nor a list"),
        (chat(user(["bare"])), "not an object"),
        (chat(user([{"type": "nonsense"}])), "type that SGLang does not know"),
        (chat(user([{"type": "thinking", "thinking": "hm"}])), "type that SGLang does not know"),
        (chat(user("x"), assistant([{"type": "thinking"}])), "either thinking or text"),
        (chat(user("x"), assistant("y", name=5)), "name is not text"),
        (chat(user("x"), assistant("y", prefix="yes")), "prefix"),
        (chat(user("x"), assistant("y", tool_calls="f")), "tool_calls is not a list"),
        (chat(user("x"), assistant("y", tool_calls=["f"])), "not a function call"),
        (chat(user("x"), assistant("y", tool_calls=[call("f", "no JSON")])), "not valid JSON"),
        (chat(user("x"), assistant("y", tool_calls=[call("f", "NaN")])), "not valid JSON"),
        (chat(user("x"), assistant("y", tool_calls=[call("f", "[1]")])), "not an object"),
        (chat(user("x"), assistant("y", tool_calls=[call("f", 5)])), "neither text nor an object"),  # type: ignore[arg-type]
        (chat(user("x"), tools="f"), "not a list"),
        (chat(user("x"), tools=[{"type": "function"}]), "no function"),
        (chat(user("x"), tools=[{"function": {}}]), "with a name"),
        (chat(user("x"), tools=[{"function": {"name": "f", "parameters": {"type": "varchar"}}}]), "JSON's"),
        (chat(user("x"), tools=TOOLS, tool_choice={"function": {"name": "no such"}}), "none of the tools"),
        (chat(user("x"), tool_choice="maybe"), "tool_choice"),
        (chat(user("x"), chat_template_kwargs=[1]), "not an object"),
        (chat(user("x"), chat_template_kwargs={"chat_template": "x"}), "chat_template"),
        (chat(user("x"), chat_template_kwargs={"messages": []}), "messages"),
        (chat(user("x"), reasoning_effort="very"), "reasoning_effort"),
        (chat(user("x"), reasoning_effort=True), "reasoning_effort"),
        (chat(user("x"), continue_final_message=1), "continue_final_message"),
        (chat(user("x"), input_ids=[1, 2]), "input_ids"),
    ],
)
def test_bodies_of_another_shape_are_rejected(body: Body, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        load_encoder("chatml").chat(body, NOW)


def test_media_are_reported_as_such() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(MediaError):
        load_encoder("chatml").chat(chat(user([text_part("see"), image])), NOW)


@pytest.mark.parametrize("architecture", ["DeepseekV41ForCausalLM", "KimiK3ForConditionalGeneration"])
def test_models_that_the_engine_renders_by_code_are_not_loaded(tmp_path: Path, architecture: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TOKENIZER / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    with pytest.raises(PromptError, match=architecture):
        SglangEncoder.load_as(Rendering("sglang", NEW), tmp_path)


# rules of single versions


def rendered(body: Body, version: tuple[int, ...], template: str = "dump") -> str:
    return load_encoder(template, version).render(body, NOW)


def test_a_function_keeps_the_client_s_order_from_0_5_23_on() -> None:
    tools = [{"type": "function", "function": {"strict": True, "name": "f", "parameters": {}}}]
    new, old, oldest = (rendered(chat(user("x"), tools=tools), v) for v in (NEW, (0, 5, 22), OLD))
    assert (
        '{"strict": true, "name": "f", "parameters": {}, "description": null}, "defer_loading": null' in new
    )
    assert (
        '{"description": null, "name": "f", "parameters": {}, "strict": true}, "defer_loading": null' in old
    )
    assert '{"description": null, "name": "f", "parameters": {}, "strict": true}}' in oldest


def test_efforts_switch_thinking_from_0_5_16_on() -> None:
    for effort, new, old in (("none", False, False), ("low", True, None)):
        body = chat(user("x"), reasoning_effort=effort)
        of_new, of_old = (load_encoder("chatml", version)._template_kwargs(body) for version in (NEW, OLD))
        assert (of_new.get("thinking"), of_old.get("thinking")) == (new, old)
        assert (of_new["reasoning_effort"], of_old["reasoning_effort"]) == (effort, effort)


@pytest.mark.parametrize(
    ("reasoning", "effort", "thinking"),
    [
        ({"effort": "none"}, "none", False),
        ({"effort": "0.5"}, 0.5, True),
        ({"reasoning_effort": "high"}, "high", True),
        ({"enabled": "yes"}, None, True),
        ({"enable": True}, None, True),
        ({"enabled": False}, None, None),
    ],
)
def test_the_object_reasoning_is_read(reasoning: Body, effort: object, thinking: bool | None) -> None:
    kwargs = load_encoder("chatml")._template_kwargs(chat(user("x"), reasoning=reasoning))
    assert (kwargs.get("reasoning_effort"), kwargs.get("thinking")) == (effort, thinking)


def test_large_integers_are_read_as_floats() -> None:
    called = assistant("", tool_calls=[call("f", '{"a": 18446744073709551615, "b": 18446744073709551616}')])
    text = rendered(chat(user("x"), called, answer("y")), NEW)
    assert '"a": 18446744073709551615, "b": 1.8446744073709552e+19' in text


def test_a_template_that_fails_on_tools_is_tried_with_bare_functions() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    source += "{% for t in tools or [] %}{{ t.name + '' }}{% endfor %}"
    prompts = SglangEncoder.load_as(Rendering("sglang", NEW), TOKENIZER, source)
    assert prompts.render(chat(user("x"), tools=[{"function": {"name": "f"}}]), NOW) == "xf"


def test_the_rendering_is_named() -> None:
    assert str(load_encoder("chatml").rendering) == "sglang 0.5.23"
