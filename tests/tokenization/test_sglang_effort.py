"""Efforts before templates that SGLang knows by their words, as tests/sglang/test_prompts.py finds them."""

from datetime import datetime
from typing import Any

import jinja2
import pytest

from gateway.app import bundled_tokenizer
from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import PromptError
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.sglang import SglangEncoder
from gateway.tokenization.sglang_effort import EffortUse, effort_use, hunyuan_effort
from tests.support.effort_templates import BODIES, SHOWN, TEMPLATES

NEW, FIRST, OLD = (0, 5, 23), (0, 5, 16), (0, 5, 15)
NOW = datetime(2024, 1, 1)
USER = {"role": "user", "content": "x"}
LOW = "{{ low_effort }}{{ truncate_history_thinking }}"


def use(source: str, version: tuple[int, ...] = NEW, parser: str | None = None) -> EffortUse:
    return effort_use(source, ENVIRONMENT.parse(source), Rendering("sglang", version, parser))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("number", range(len(BODIES)))
def test_arguments_are_those_of_the_engine(name: str, number: int) -> None:
    body: dict[str, Any] = {"messages": [USER], **BODIES[number]}
    prompts = SglangEncoder.load_as(Rendering("sglang", NEW), bundled_tokenizer(), TEMPLATES[name])
    assert prompts.render(body, NOW).partition("|")[0] == SHOWN[name][number]


def test_low_effort_is_set_from_0_5_16_on() -> None:
    assert [use(LOW, version) for version in (NEW, FIRST)] == [EffortUse.SETS_LOW] * 2
    assert use(LOW, OLD) is EffortUse.NONE


@pytest.mark.parametrize(
    ("words", "since"),
    [
        ("<|channel|>", FIRST),
        ("reasoning_effort [THINK]", FIRST),
        ("{% if not enable_thinking is defined %}{% set enable_thinking = false %}{% endif %}", FIRST),
        ("{{ enable_thinking | default(false) }}", (0, 5, 17)),
        ("{{ enable_thinking | d(false, boolean=true) }}", (0, 5, 17)),
        ("<ifm|think> <ifm|think_fast> reasoning_effort", (0, 5, 20)),
        ("[gMASK]<sop> Reasoning Effort: <tool_call> <arg_key> <arg_value>", (0, 5, 20)),
        ("reasoning_effort reasoning_mode_token no_think", (0, 5, 20)),
    ],
)
def test_family_that_the_engine_looks_for_first_wins(words: str, since: tuple[int, ...]) -> None:
    assert use(words + LOW, since) is EffortUse.NONE
    before = (*since[:2], since[2] - 1)
    assert use(words + LOW, before) is (EffortUse.SETS_LOW if before >= FIRST else EffortUse.NONE)


@pytest.mark.parametrize(
    "words",
    [
        "{{ enable_thinking | default(true) }}",
        "{{ enable_thinking | default(x) }}",
        "{{ enable_thinking | default(false, x) }}",
        "{{ enable_thinking | default(*x) }}",
        "{{ enable_thinking | default }}",
        "{{ other | default(false) }}",
        "{{ enable_thinking | upper }}",
        "{# [gMASK]<sop> Reasoning Effort: <tool_call> <arg_key> <arg_value> enable_thinking #}",
    ],
)
def test_other_words_do_not_make_another_family(words: str) -> None:
    tree = jinja2.Environment().parse(words + LOW)
    assert effort_use(words + LOW, tree, Rendering("sglang", NEW)) is EffortUse.SETS_LOW


def test_hunyuan_is_known_by_the_reasoning_parser_too() -> None:
    words = "reasoning_effort reasoning_mode_token no_think"
    assert use(words, NEW, "hunyuan") is EffortUse.HUNYUAN
    assert use(words, NEW, "qwen3") is use(words, (0, 5, 19), "hunyuan") is EffortUse.NONE


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({}, "high"),
        ({"reasoning_effort": "none"}, "no_think"),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "max"}, "high"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),
        ({"reasoning_effort": "medium", "chat_template_kwargs": {"reasoning_effort": "low"}}, "high"),
    ],
)
def test_hunyuan_gets_efforts_in_its_own_words(body: dict[str, Any], shown: str) -> None:
    source = "{{ reasoning_effort }}|{#- reasoning_mode_token no_think #}"
    rendering = Rendering("sglang", NEW, "hunyuan")
    prompts = SglangEncoder.load_as(rendering, bundled_tokenizer(), source)
    assert prompts.render({"messages": [USER], **body}, NOW) == f"{shown}|"


@pytest.mark.parametrize("effort", ["ultra", 0.5, ["low"]])
def test_efforts_that_hunyuan_does_not_have_are_rejected(effort: object) -> None:
    with pytest.raises(PromptError, match="Hunyuan"):
        hunyuan_effort(effort)
