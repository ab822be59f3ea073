"""Chat templates rendered as Hugging Face does, with messages prepared as vLLM does; the corpus
compares with the engine.
"""

import json
from datetime import datetime
from typing import Any

import pytest

from gateway.tokenization.chat_template import PromptError, Template, conversation, dump_tools
from tests.support.corpus import TEMPLATE_NAMES, TEMPLATES

NOW = datetime(2024, 7, 26, 12, 30)
USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] = USER, **variables: Any) -> str:
    return Template(source).render(messages, variables, NOW)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ x | tojson }}", '{"é": "<&>\'"}'),
        ("{{ x | tojson(indent=1) }}", '{\n "é": "<&>\'"\n}'),
        ("{{ x | tojson(ensure_ascii=True) }}", '{"\\u00e9": "<&>\'"}'),
        ("{{ strftime_now('%d %b %Y %H:%M') }}", "26 Jul 2024 12:30"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{% set ns = namespace(n=0) %}{% generation %}{% set ns.n = 1 %}{% endgeneration %}{{ ns.n }}", "1"),
        ("[{{ bos_token }}{{ undefined_name }}]", "[]"),
        ("{{ 'x' if tools is none else 'y' }}", "x"),
    ],
)
def test_environment(source: str, text: str) -> None:
    assert render(source, x={"é": "<&>'"}, tools=None) == text


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ messages", "{% generation %}", "{{ x | nofilter }}", "{% nope %}"]
)
def test_a_template_with_a_syntax_error_does_not_compile(source: str) -> None:
    with pytest.raises(PromptError, match="does not compile"):
        Template(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nope.more }}", "no attribute 'nope'"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ 'a' + 1 }}", "concatenate"),
    ],
)
def test_a_template_that_raises_is_named(source: str, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        render(source)


def test_a_conversation_without_messages_is_rejected() -> None:
    with pytest.raises(PromptError, match="empty"):
        render("x", [])


@pytest.mark.parametrize(
    ("loop", "form"),
    [
        ("{{ messages[0].content }}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for p in m['content'][0:] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for p in m['parts'] %}{% endfor %}{% endfor %}", "string"),
        ("{% set t = messages %}{% for m in t %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% set t = messages %}{% set t = t %}{% set u = t[1:] %}{% for m in u %}{% for p in m.content %}"
         "{% endfor %}{% endfor %}", "openai"),
        ("{% set content = messages[0].content %}{% for p in content %}{% endfor %}", "openai"),
        ("{% set words = messages[0].content %}{% for p in words %}{% endfor %}", "string"),
        ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", "string"),
        ("{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}"
         "{% endfor %}", "openai"),
        ("{% macro f(y, x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}"
         "{{ f(1, x=m.content) }}{% endfor %}", "openai"),
        ("{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}"
         "{% endfor %}", "string"),
        ("{% for a, b in messages %}{% for p in content %}{% endfor %}{% endfor %}", "string"),
        ("{% set ns = namespace() %}{% set ns.m = messages %}{% for p in content %}{% endfor %}", "string"),
    ],
)  # fmt: skip
def test_content_format(loop: str, form: str) -> None:
    assert Template(loop).content_format == form


def test_content_format_of_the_templates() -> None:
    found = {
        name: Template((TEMPLATES / f"{name}.jinja").read_text("utf-8")).content_format
        for name in TEMPLATE_NAMES
    }
    assert [name for name, form in found.items() if form == "openai"] == ["parts", "dump_parts"]


TRIMMED = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        ("<{{ messages[-1].content }}>end", "Once ", "<Once "),
        (TRIMMED, "Once ", "<Once"),
        (TRIMMED, "Once", "<Once"),
        ("{{ messages[-1].content }}", "CONTINUE_FINAL_MESSAGE_TAG x", "CONTINUE_FINAL_MESSAGE_TAG x"),
        ("{{ messages[-1].content[1].text }}.", [{"text": "a"}, {"text": "b"}], "b"),
    ],
)
def test_continue_final_message(source: str, content: Any, text: str) -> None:
    messages = [{"role": "assistant", "content": content}]
    before = json.dumps(messages)
    assert Template(source).render_open(messages, {}, NOW) == text
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    ("source", "content", "variables"),
    [
        ("{{ messages[-1].content }}", "x", {"add_generation_prompt": True}),
        ("{{ messages[-1].role }}", "x", {}),
        ("content is not shown", "x", {}),
        ("{{ messages[-1].content }}", None, {}),
        ("{{ messages[-1].content }}", [], {}),
        ("{{ messages[-1].content | upper }}", "x", {}),
    ],
)
def test_a_final_message_that_cannot_be_continued_is_rejected(
    source: str, content: Any, variables: dict[str, Any]
) -> None:
    with pytest.raises(PromptError, match="continue_final_message"):
        Template(source).render_open([{"role": "assistant", "content": content}], variables, NOW)


def message(given: dict[str, Any], form: Any = "string") -> dict[str, Any]:
    before = json.dumps(given)
    (result,) = conversation([given], form)
    assert json.dumps(given) == before, "the request's own body must stay as it is"
    return result


TEXT_PARTS = [
    {"type": "text", "text": "a", "cache_control": 1, "uuid": "u"},
    "",
    {"type": "text", "text": "b"},
]


@pytest.mark.parametrize(
    ("given", "form", "content"),
    [
        ({"role": "user", "content": "x"}, "string", "x"),
        ({"role": "user", "content": "x"}, "openai", [{"type": "text", "text": "x"}]),
        ({"role": "user", "content": None}, "string", ""),
        ({"role": "user"}, "openai", []),
        ({"role": "user", "content": TEXT_PARTS}, "string", "a\nb"),
        (
            {"role": "user", "content": TEXT_PARTS},
            "openai",
            [
                {"type": "text", "text": "a", "cache_control": 1},
                {"type": "text", "text": ""},
                {"type": "text", "text": "b"},
            ],
        ),
        ({"role": "tool", "content": TEXT_PARTS}, "openai", "a\n\nb"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "string", "no"),
        ({"role": "user", "content": [{"type": "tool_reference", "name": "f"}]}, "string", "f"),
    ],
)
def test_content(given: dict[str, Any], form: Any, content: Any) -> None:
    assert message(given, form)["content"] == content


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"b": 1, "a": [1.0]}', {"b": 1, "a": [1.0]}),
        ("", {}),
        ("not json", {}),
        ("[1]", {}),
        ({"already": 1}, {"already": 1}),
        (None, {}),
    ],
)
def test_arguments_become_an_object(given: Any, arguments: Any) -> None:
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": given, "x": 1}, "id": "1", "index": 0}
    ]
    (call,) = message({"role": "assistant", "content": None, "tool_calls": calls})["tool_calls"]
    assert call["function"]["arguments"] == arguments
    assert list(call) == ["id", "function", "type", "index"]
    assert list(call["function"]) == ["arguments", "name", "x"]


def test_keys_of_a_message() -> None:
    given = {
        "name": "Al",
        "extra": 1,
        "reasoning_content": "r",
        "content": "c",
        "role": "assistant",
        "tool_calls": [],
    }
    assert list(message(given)) == ["role", "content", "reasoning", "reasoning_content", "name"]
    assert list(message({"role": "tool", "tool_call_id": "1", "content": ""})) == [
        "role",
        "content",
        "tool_call_id",
    ]
    assert message({"role": "user", "content": "", "tool_calls": [1], "reasoning": "r"}) == {
        "role": "user",
        "content": "",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x-anthropic-billing-header: cch=1;\nrest", "rest"),
        ("x-anthropic-billing-header: cch=1;", ""),
        ("not x-anthropic-billing-header", "not x-anthropic-billing-header"),
    ],
)
def test_billing_header(content: str, expected: str) -> None:
    assert message({"role": "system", "content": content})["content"] == expected
    assert message({"role": "user", "content": content})["content"] == content


ROLES = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (ROLES, "system=s\n\nd;user=u;"),
        (ROLES + "{# 'developer' #}", "user=u;developer=d;system=s;"),
    ],
)
def test_a_developer_message_becomes_system_where_the_template_has_no_such_role(
    source: str, text: str
) -> None:
    messages = [("user", "u"), ("developer", "d"), ("system", "s")]
    if "#" not in source:
        messages = [("system", "s"), ("user", "u"), ("developer", "d")]
    given = [{"role": role, "content": content} for role, content in messages]
    assert render(source, conversation(given, "string")) == text


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hi", "messages"),
        (None, "messages"),
        ([1], r"messages\[0\]: no role"),
        ([{"content": ""}], r"messages\[0\]: no role"),
        ([USER[0], {"role": "user", "content": 5}], r"messages\[1\]: content"),
        ([{"role": "user", "content": [5]}], "part"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "'text'"),
        ([{"role": "user", "content": [{"type": []}]}], "of unknown type"),
        ([{"role": "user", "content": [{"type": {"type": "image_url"}}]}], "of unknown type"),
        ([{"role": "assistant", "tool_calls": "x"}], "tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"type": "custom"}]}], "tool call"),
        ([{"role": "assistant", "tool_calls": [1]}], "tool call"),
        ([{"role": "developer", "tools": [1]}], "tool"),
    ],
)
def test_messages_of_another_shape_are_rejected(messages: Any, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        conversation(messages, "string")


@pytest.mark.parametrize(
    ("tool", "dumped"),
    [
        (
            {"function": {"name": "f"}},
            '{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}',
        ),
        (
            {"function": {"strict": True, "parameters": {"z": 1, "a": 2}, "name": "f", "x": 1}, "y": 1},
            '{"type": "function", "function": {"name": "f", "description": null, '
            '"parameters": {"z": 1, "a": 2}, "strict": true}}',
        ),
        (
            {"defer_loading": True, "function": {"name": "f", "strict": None}},
            '{"type": "function", "function": {"name": "f", "description": null, "parameters": null, '
            '"defer_loading": true}, "defer_loading": true}',
        ),
    ],
)
def test_dump_tools(tool: dict[str, Any], dumped: str) -> None:
    assert json.dumps(dump_tools([tool])) == f"[{dumped}]"


def test_no_tools() -> None:
    assert dump_tools(None) is None


@pytest.mark.parametrize(
    "tools",
    ["f", [1], [{}], [{"function": 1}], [{"function": {}}], [{"type": "x", "function": {"name": "f"}}]],
)
def test_tools_of_another_shape_are_rejected(tools: Any) -> None:
    with pytest.raises(PromptError, match="tools"):
        dump_tools(tools)
