"""A template is probed with what it needs, so that only one that never renders is refused."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.app import bundled_tokenizer
from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import PromptError, Template
from gateway.tokenization.mlx import MlxEncoder
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.sglang import SglangEncoder
from gateway.tokenization.template_needs import NEEDS, needs_of

NOW = datetime(2024, 1, 1)
SAYS = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{%- endfor %}"
USER = {"role": "user", "content": "x"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "s"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "1"}
PLAIN: dict[str, Any] = {"messages": [USER]}
TALK = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT]

NEEDY: Mapping[str, tuple[str, dict[str, Any]]] = {
    "tools": ("{%- if tools | length > 0 %}{{ tools | tojson }}{% endif %}", {"tools": TOOLS}),
    "descriptions": (
        "{%- for t in tools %}{{ t.function.description.upper() }}{% endfor %}",
        {"tools": TOOLS},
    ),
    "a system message": (
        "{%- if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
        {"messages": [SYSTEM, USER]},
    ),
    "both": (
        "{%- if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ tools | length }}",
        {"messages": [SYSTEM, USER], "tools": TOOLS},
    ),
    "documents": (
        "{%- for d in documents %}{{ d.title + d.text }}{% endfor %}",
        {"documents": [{"title": "a", "text": "b"}]},
    ),
    "an effort": ("{{- 'effort ' + reasoning_effort }}", {"reasoning_effort": "high"}),
    "a call": (
        "{%- if messages[-1].role != 'tool' %}{{ raise_exception('no result') }}{% endif %}",
        {"messages": TALK, "tools": TOOLS},
    ),
    "a variable": (
        "{%- if persona is not defined %}{{ raise_exception('no persona') }}{% endif %}{{ persona }}",
        {"chat_template_kwargs": {"persona": "kind"}},
    ),
    "a variable and tools": (
        "{{- 'be ' + persona + tools[0].function.name }}",
        {"chat_template_kwargs": {"persona": "kind"}, "tools": TOOLS},
    ),
}


@pytest.mark.parametrize("need", NEEDY)
def test_template_with_a_need_is_loaded_and_refuses_only_what_its_engine_refuses(need: str) -> None:
    source, more = NEEDY[need]
    prompts = PromptEncoder.load(bundled_tokenizer(), source + SAYS)
    assert prompts.chat({**PLAIN, **more}, NOW) and "x" in prompts.render({**PLAIN, **more}, NOW)
    with pytest.raises(PromptError, match="chat template"):
        prompts.chat(PLAIN, NOW)


def test_template_with_a_need_is_loaded_for_every_engine() -> None:
    source, more = NEEDY["tools"]
    sglang = SglangEncoder.load_as(Rendering("sglang", (0, 5, 23)), bundled_tokenizer(), source + SAYS)
    for prompts in (sglang, MlxEncoder.load_for_mlx(bundled_tokenizer(), source + SAYS)):
        assert prompts.chat({**PLAIN, **more}, NOW)


@pytest.mark.parametrize("named", ["default", "tool_use"])
def test_model_with_a_template_for_tools_only_is_loaded(tmp_path: Path, named: str) -> None:
    (tmp_path / "tokenizer.json").symlink_to(bundled_tokenizer() / "tokenizer.json")
    templates = [{"name": named, "template": NEEDY["tools"][0] + SAYS}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    prompts = PromptEncoder.load(tmp_path)
    assert prompts.chat({**PLAIN, "tools": TOOLS}, NOW)
    with pytest.raises(PromptError):
        prompts.chat(PLAIN, NOW)


def test_first_probe_is_plain_and_only_templates_with_variables_get_arguments() -> None:
    assert list(needs_of([Template(SAYS)], ())) == list(NEEDS)
    own = Template("{{ persona }}{{ bos_token }}{{ strftime_now('%d') }}{{ namespace() }}{{ tools }}")
    probes = list(needs_of([own], ["bos_token"]))
    assert probes[: len(NEEDS)] == list(NEEDS)
    assert [each["chat_template_kwargs"] for each in probes[len(NEEDS) :]] == [{"persona": "probe"}] * len(
        NEEDS
    )


@pytest.mark.parametrize("source", ["{{ raise_exception('no chat') }}", "{{ messages[0].nothing.at }}"])
def test_template_that_never_renders_is_refused_with_the_reason_of_a_plain_chat(source: str) -> None:
    with pytest.raises(PromptError, match="fails on a plain conversation: .*(no chat|nothing)"):
        PromptEncoder.load(bundled_tokenizer(), source)
