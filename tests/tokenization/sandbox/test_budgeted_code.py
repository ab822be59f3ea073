"""Generated code gives the results of jinja's own; what has no price is refused, and nothing is folded."""

import pytest

from gateway.tokenization.chat_template import NotRendered, PromptError, Template
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.sandbox.budgeted_code import MAX_NODES, MAX_SOURCE_CHARS
from tests.support.template_outcomes import UNLIMITED, outcome


@pytest.mark.parametrize(
    "source",
    [
        *(
            "{{ 'a' + s + 'b' + d.role + s + 'c' }}",
            "{{ s + d.role }}",
            "{{ s + 1 }}",
            "{{ 'a' + 1 }}",
            "{{ 1 + 'a' }}",
        ),
        *(
            "{{ d.n + 1 + d.n }}",
            "{{ 1 + 2 }}",
            "{{ [1] + [2] + messages }}",
            "{{ s + missing }}",
            "{{ 'x' + missing }}",
        ),
        *(
            "{{ s ~ 1 ~ none ~ d ~ missing }}",
            "{{ 1.5 ~ '' }}",
            "{{ ('<b>'|e) + '<' + ('a'|safe) }}",
            "{{ '<' + ('&'|e) }}",
        ),
        *(
            "{{ d.n - 1 }}",
            "{{ 7 - d.n - d.n }}",
            "{{ d.n * 4 }}",
            "{{ 'ab' * d.n }}",
            "{{ [1, 2] * 2 }}",
            "{{ -d.n }}",
        ),
        *(
            "{{ d.n // 2 }}",
            "{{ d.n / 2 }}",
            "{{ d.n % 2 }}",
            "{{ d.n ** 2 }}",
            "{{ '%s-%d' % (s, d.n) }}",
            "{{ 1 % 0 }}",
        ),
        *(
            "{{ 2.5 - 1 }}",
            "{{ true - 1 }}",
            "{{ s - 1 }}",
            "{{ 1 // 0 }}",
            "{{ s // 2 }}",
            "{{ 2 ** -1 }}",
            "{{ 9 * s }}",
        ),
        *(
            "{{ s == 'a text' }}",
            "{{ s != d.role }}",
            "{{ 1 < d.n < 5 }}",
            "{{ d == {'role': 'x', 'n': 3} }}",
        ),
        *("{{ s > d.role }}", "{{ s < 1 }}", "{{ messages == messages[:] }}", "{{ long == long[:] }}"),
        *(
            "{{ 'role' in d }}",
            "{{ 'x' not in s }}",
            "{{ d.role in ['x', 'y'] }}",
            "{{ d.role in ('y',) }}",
            "{{ s in long }}",
        ),
        *(
            "{{ d.n in range(4) }}",
            "{{ d.role not in messages[0] }}",
            "{{ 1 in 5 }}",
            "{{ 'x' in missing }}",
            "{{ 'x' in none }}",
        ),
        *(
            "{{ 'a' in messages | map(attribute='role') }}",
            "{{ d.n in [d.n, s] }}",
            "{{ 'role' in d.keys() }}",
        ),
        *(
            "{{ s[1:3] }}",
            "{{ messages[::-1][0].role }}",
            "{{ messages[-1]['content'] }}",
            "{{ d['n'] }}",
            "{{ s[9] }}",
        ),
        *(
            "{{ d['missing'] }}",
            "{{ missing.a }}",
            "{{ d.missing.a }}",
            "{{ none.a }}",
            "{{ d.items() | list }}",
        ),
        *(
            "{{ messages[0].calls[0] }}",
            "{{ (messages | first).role }}",
            "{{ {s: 1, 'k': [s]}[s] }}",
            "{{ [s, [d.n]] }}",
        ),
        *(
            "{{ s if d.n else 1 }}",
            "{{ s if not d.n }}",
            "{{ not s }}",
            "{{ s and d.n or 1 }}",
            "{{ (1, s)[1] }}",
        ),
        *(
            "{{ namespace(a=1).a }}",
            "{{ dict(a=1, b=s).b }}",
            "{{ dict({'a': 1}) }}",
            "{{ dict([('a', 1)]) }}",
        ),
        *(
            "{{ namespace({'a': 1}).a }}",
            "{{ range(3) | list }}",
            "{{ range(9**9) }}",
            "{{ joiner(', ')() }}",
        ),
        "{% for m in messages if m.role == 'a' %}"
        "{{ loop.index }}{{ loop.length }}{{ m.content }}{% else %}no{% endfor %}",
        "{% for m in messages %}"
        "{{ loop.first }}{{ loop.last }}{{ loop.previtem.role }}{{ loop.cycle('x', 'y') }}{% endfor %}",
        "{% for m in missing %}{{ m }}{% else %}none{% endfor %}{% for m in none %}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{% for c in s %}{{ c }}.{% endfor %}"
        "{% for c in d %}{{ c }}{% endfor %}",
        "{% for m in messages | selectattr('role', 'eq', 'b') %}"
        "{{ loop.index }}{{ loop.length }}{% endfor %}",
        "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{% if loop.last %}"
        "{% break %}{% endif %}{{ loop.changed(m.role) }}{% endfor %}",
        "{% macro f(x, y='d') %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{% endmacro %}"
        "{{ f(s) }}{{ f(1, 2, 3, k=4) }}{{ f() }}",
        "{% macro f(t) %}{% for x in t %}{{ x.n }}({{ f(x.c) }}){% endfor %}{% endmacro %}{{ f(tree) }}",
        "{% macro f() %}<{{ caller('x') }}>{% endmacro %}{% call(y) f() %}{{ y }}{{ s }}{% endcall %}",
        "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
        "{% set x %}a{{ s }}{% endset %}{{ x }}{% filter upper %}b{{ s }}{% endfilter %}{% with y = s %}"
        "{{ y }}{% endwith %}",
        "{% set a, b = s, d.n %}{{ a }}{{ b }}{% if a is defined and b is not none %}"
        "{{ a is string }}{% endif %}",
        "{{ 'a' }}{{ 1 }}{{ none }}{{ true }}{{ 1.5 }}{{ [] }}{{ {} }}{{ 'x' * 3 }}{{ 2 + 3 }}",
        *(
            "{{ loop }}",
            "{{ self }}{{ s.nope() }}",
            "{{ s() }}",
            "{{ d.n() }}",
            "{{ d.items(1) }}",
            "{{ messages.index(messages[1]) }}",
        ),
    ],
)
def test_results_are_those_of_jinja(source: str) -> None:
    assert outcome(ENVIRONMENT, source) == outcome(UNLIMITED, source)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        *(
            ("{% include 'x' %}", "include"),
            ("{% import 'x' as y %}", "import"),
            ("{% extends 'x' %}", "extends"),
        ),
        *(("{% from 'x' import y %}", "from"), ("{% block a %}{{ self.a() }}{% endblock %}", "block")),
        *(("{% autoescape true %}a{% endautoescape %}", "autoescape"), ("{{ f(*messages) }}", "calls with")),
        *(
            ("{{ f(**messages[0]) }}", "calls with"),
            ("{% for x in y recursive %}{% endfor %}", "recursive loop"),
        ),
        *(
            (f"{{{{ x | {name} }}}}", name)
            for name in ("urlize", "striptags", "wordwrap", "pprint", "random", "attr")
        ),
        *(("{{ 1 < 2 in [2] }}", "chain"), ("x" * (MAX_SOURCE_CHARS + 1), "characters")),
        *(
            ("{{ x }}" * MAX_NODES, "nodes"),
            ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ),
        *(
            ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "nested too deeply"),
            ("{{ a" + ".b" * 4000 + " }}", "nested"),
        ),
        *(("{{ " + "not " * 3000 + "1 }}", "nested"), ("{{ x" + "|upper" * 3000 + " }}", "nested")),
    ],
)
def test_templates_that_are_not_rendered_here_are_named(source: str, word: str) -> None:
    with pytest.raises(NotRendered, match=word) as caught:
        Template(source)
    assert "\n" not in str(caught.value)


def test_what_python_cannot_compile_is_named() -> None:
    with pytest.raises(PromptError, match="too many statically nested blocks"):
        Template("{% for a in b %}" * 30 + "{% endfor %}" * 30)


@pytest.mark.parametrize(
    "value", ["9**(9**9)", "'a' * 10**12", "'%1000000000d' % 1", "range(10**9) | list", "[1] * 10**12"]
)
def test_nothing_is_computed_while_a_template_is_compiled(value: str) -> None:
    """Folding these constants would never end, or take all memory."""
    for form in (
        "{{ %s }}",
        "{{ (%s) ~ 'a' }}",
        "{%% set x = %s %%}",
        "{{ 'a' if %s }}",
        "{{ [%s, 1][1:] }}",
    ):
        assert Template("{% if false %}" + form % value + "{% endif %}")
