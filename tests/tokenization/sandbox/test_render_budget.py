"""A rendering ends when it has cost more than an honest template can need, whatever the template does."""

import tracemalloc
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from gateway.tokenization.chat_template import PromptError, Template, TooCostly
from gateway.tokenization.sandbox import render_budget
from gateway.tokenization.sandbox.render_budget import (
    BASE_UNITS,
    MAX_INLINE_UNITS,
    MAX_UNITS,
    allowance,
    hurry,
    measured,
)
from tests.support.corpus import TEMPLATE_NAMES, TEMPLATES

NOW = datetime(2024, 7, 26)
VARIABLES = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}
MAX_PEAK_BYTES = 64 << 20
"""Bytes that Python allocates for a rendering: attacks ask for gigabytes, or are never done."""


def chat(num: int = 33) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"hello {i}"} for i in range(num)]


def render(source: str, num: int = 33) -> str:
    return Template(source).render(chat(num), {"tools": None}, NOW)


def repeated(start: str, step: str, end: str, num: int = 60) -> str:
    """Template that keeps a value in `a.s`, and repeats a step."""
    return f"{{% set a = namespace(s={start}) %}}{{% for i in range({num}) %}}{step}{{% endfor %}}{end}"


LONG = "{% set s = 'x' * 100000 %}{% for i in range(9999) %}"
PAIR, TUPLE = "{% set a.s = [a.s, a.s] %}", "{% set a.s = (a.s, a.s) %}"
COSTLY = [
    *("{{ 9**(9**9) }}", "{{ 7**4000 }}", "{{ (9**1000)**1000 }}", "{{ ('9'*1000000)|int }}"),
    *("{{ ('f'*1000000)|int(base=16) }}", "{{ 3|round(10**9, 'ceil') }}", "{{ 10**1000 * 10**1000 }}"),
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(1000) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% endfor %}" * 20,
    "{% for i in range(99999) %}{% for m in messages if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}" + "y" * 20_000 + "{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 120 }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% filter upper %}{% for i in range(99999) %}aaaaaaa{% endfor %}{% endfilter %}",
    *("{{ 'a'*1500000000 }}", "{{ 1500000000*'a' }}", "{{ [1]*10**9 }}", "{{ [messages]*10**6 }}"),
    *("{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}", "{{ '%.1000000000f' % 1 }}"),
    *("{{ '%1000000000d'|format(1) }}", "{{ '{:1000000000}'.format(1) }}"),
    *("{{ '{:{w}}'.format(1, w=10**9) }}", "{{ '{0:>{1}}'.format('a', 10**9) }}"),
    *(
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.rjust(10**9) }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
    ),
    *("{{ ('\t'*1000).expandtabs(10**7) }}", "{{ ('a'*1000).join(range(99999)|map('string')) }}"),
    *("{{ ('a'*10000).replace('a', 'x'*10000) }}", "{{ ('a'*10000).replace('', 'x'*10000) }}"),
    *("{{ ('a'*10000)|replace('a', 'x'*10000) }}", "{{ ''|replace('', 'x'*10000)|replace('x', 'x'*10000) }}"),
    *(
        "{{ 'a\nb'|indent(width=10**9) }}",
        "{{ ('\n'*10000)|indent(4000) }}",
        "{{ messages|tojson(indent=10**9) }}",
    ),
    *("{{ 'abc'|batch(10**9, 'x')|list }}", "{{ 'abc'|slice(10**9)|list }}", "{{ [[1]]*9|sum(start=[]) }}"),
    "{{ range(99999)|map('string')|list|join('x'*10000) }}",
    *("{{ strftime_now('%Y'*100000) }}", "{{ ('a-'*900000)|title }}"),
    *("{{ ('a'*100000).rfind('b'+'a'*50000) }}", "{{ ('a'*100000).rsplit('b'+'a'*50000) }}"),
    *("{{ ('a'*100000).strip('b'*50000) }}", "{{ ('ab'*50000)|trim('b'*50000) }}"),
    *("{{ range(99999)|list|sort }}" * 20, "{{ range(99999)|map('upper')|map('lower')|list }}" * 20),
    *(LONG + body + "{% endfor %}" for body in ("{{ s }}", "{% if 'b' in s %}{% endif %}")),
    *(LONG + body + "{% endfor %}" for body in ("{% set t = s.upper() %}", "{% set t = s[1:] %}")),
    LONG.replace("%}{% for", "%}{% set t = s[1:] + 'y' %}{% for") + "{% set u = s == t %}{% endfor %}",
    *(
        repeated("'a'", "{% set a.s = " + double + " %}", "{{ a.s|length }}", 100)
        for double in (
            *("a.s + a.s", "a.s ~ a.s", "a.s + 'b' + a.s", "'%s%s' % (a.s, a.s)", "'{0}{0}'.format(a.s)"),
            *("[a.s, a.s]|join", "a.s * 2", "a.s|replace('a', 'aa')", "a.s|format()|indent(9) + a.s"),
        )
    ),
    repeated("'a'", "{% set x %}{{ a.s }}{{ a.s }}{% endset %}{% set a.s = x %}", "", 100),
    repeated("[1]", "{% set a.s = a.s + a.s %}", "", 100),
    *(repeated("[1]", PAIR, end) for end in ("{{ a.s }}", "{{ a.s|tojson }}", "{{ a.s|string }}")),
    *(repeated("[1]", PAIR, end) for end in ("{{ '%s' % a.s }}", "{{ '{}'.format(a.s) }}", "{{ '' ~ a.s }}")),
    *(repeated("[1]", PAIR, end) for end in ("{{ a.s|upper }}", "{{ [a.s]|map('string')|list }}")),
    *(repeated("[1]", PAIR, end) for end in ("{{ a.s == [a.s[0], 1] }}", "{{ a.s in [a.s[0]] }}")),
    repeated("[1]", "{% set a.s = {'a': a.s, 'b': a.s} %}", "{{ a.s }}"),
    repeated("[1]", "{% set a.s = dict(a=a.s, b=a.s) %}", "{{ a.s }}"),
    repeated("[[1, 2]]", "{% set a.s = a.s|groupby(0)|list %}", "{{ a.s }}"),
    repeated("namespace()", "{% set a.s = namespace(a=a.s, b=a.s) %}", "{{ a.s }}"),
    repeated("namespace()", "{% set a.s = namespace(a=a.s, b=a.s) %}", "{{ [a.s] }}"),
    *(repeated("(1,)", TUPLE, end) for end in ("{{ {a.s: 1} }}", "{{ messages[0][a.s] }}")),
    *(repeated("(1,)", TUPLE, end) for end in ("{{ a.s in messages[0] }}", "{{ messages[0].get(a.s) }}")),
    *(repeated("(1,)", TUPLE, end) for end in ("{{ [a.s, a.s]|unique|list }}", "{{ dict([(a.s, 1)]) }}")),
    "{% macro f(d) %}{% if d %}{{ g(varargs, varargs, d) }}{% endif %}{% endmacro %}"
    "{% macro g(a, b, d) %}{{ varargs }}{{ f(d-1, a, b) }}{{ f(d-1, a, b) }}{% endmacro %}{{ f(60, 1, 2) }}",
    repeated("''", "{% set a.s = a.s + ('%99d' * 1000) % ((1,) * 1000) %}", "", 9999),
    repeated("''", "{% set a.s = a.s + 'a'.center(4096) %}", "", 9999),
    repeated("''", "{% set a.s = a.s + strftime_now('%99d' * 30) %}", "", 9999),
    *("{{ '%999d' % 1 }}", "{{ '%.999f' % 1 }}", "{{ '%(a)999d' % {'a': 1} }}", "{{ '%         999d' % 1 }}"),
    "{% for i in range(9999) %}{% if 'a' in range(99999) %}{% endif %}{% endfor %}",
    repeated("messages", "{% set a.s = a.s|map('upper') %}", "{{ a.s|list }}", 3000),
]


@pytest.fixture
def hurried() -> Iterator[None]:
    hurry(True)
    yield
    hurry(False)


@pytest.mark.parametrize("source", COSTLY)
def test_a_costly_template_ends_before_it_costs(source: str, hurried: None) -> None:
    template = Template(source)
    tracemalloc.start()
    try:
        with pytest.raises(TooCostly, match="^chat template: "):
            template.render(chat(), {"tools": None}, NOW)
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK_BYTES
    finally:
        tracemalloc.stop()


def test_a_template_that_costs_too_much_for_one_number_of_messages_is_at_fault_then() -> None:
    trap = "{% if messages|length == 33 %}" + COSTLY[7] + "{% endif %}ok"
    assert render(trap, 32) == render(trap, 34) == "ok"
    with pytest.raises(TooCostly) as caught:
        render(trap, 33)
    assert caught.value.is_fault


def test_what_may_be_honest_is_no_fault_and_may_be_rendered_in_a_thread() -> None:
    """Each message with each other, by many nodes: the event loop cannot wait for it, and a thread can."""
    body = "{% for m in messages %}{% if m.role == 'a' %}{{ m.content }}{% endif %}{% endfor %}" * 3
    source = "{% for n in messages %}" + body + "{% endfor %}ok"
    assert render(source, 60) == "ok"
    hurry(True)
    try:
        with pytest.raises(TooCostly) as caught:
            render(source, 60)
    finally:
        hurry(False)
    assert (caught.value.is_fault, caught.value.is_inline) == (False, True)


@pytest.mark.parametrize("num", [1, 100, 1000])
@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_no_usual_template_comes_near_its_budget(
    name: str, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = Template((TEMPLATES / f"{name}.jinja").read_text("utf-8"))
    messages = [
        {"role": role, "content": text * 40}
        for _ in range(num)
        for role, text in (("user", "a b "), ("assistant", "c "))
    ]
    rendered = template.render(template.conversation(messages), VARIABLES, NOW)
    monkeypatch.setattr(render_budget, "NUM_WALKS", render_budget.NUM_WALKS / 4)
    monkeypatch.setattr(render_budget, "CHAR_UNITS", render_budget.CHAR_UNITS / 4)
    assert template.render(template.conversation(messages), VARIABLES, NOW) == rendered


def test_the_allowance_grows_with_the_input() -> None:
    assert allowance(0, 0, 0, 0) == (BASE_UNITS, 0)
    few, many = allowance(5, 10, 100, 50), allowance(1000, 3000, 10_000, 100)
    assert few[0] < MAX_INLINE_UNITS < MAX_UNITS < many[0] and many[1] == 100 * few[1]


def test_a_value_is_measured_as_often_as_it_is_reached() -> None:
    text = "x" * 10
    assert measured({"a": [text, text, (1, None)]}, 100) == (8, 21)
    shared: list[Any] = [text]
    for _ in range(100):
        shared = [shared, shared]
    assert measured(shared, 1000)[0] == 1000


@pytest.mark.parametrize(
    "source",
    [
        *("{{ dict.pop(messages[0], 'role') }}", "{{ dict.update(messages[0], {'role': 'x'}) }}"),
        *(
            "{{ dict['pop'](messages[0], 'role') }}",
            "{{ ([dict]|map(attribute='clear')|first)(messages[0]) }}",
        ),
        *(
            "{{ messages.append(1) }}",
            "{{ messages[0].update(a=1) }}",
            "{{ [].__class__.append(messages, 1) }}",
        ),
        *("{{ messages[0].fromkeys('abc') }}", "{{ 'a'.encode() }}", "{{ (1).from_bytes('a', 'big') }}"),
        *("{{ 'abc'.translate({97: 'x'*1000}) }}", "{{ 'a'.maketrans('a', 'b') }}", "{{ namespace.mro() }}"),
        *("{{ lipsum() }}", "{{ cycler.__init__() }}", "{{ range.__call__(1) }}"),
    ],
)
def test_methods_that_are_not_listed_cannot_be_called(source: str) -> None:
    messages = chat(2)
    with pytest.raises(PromptError):
        Template(source).render(messages, {}, NOW)
    assert messages == chat(2)
