"""Sandbox shortcuts give the same results as jinja's own lookups."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.tokenization.jinja_env import ENVIRONMENT

PLAIN = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
VALUES: dict[str, Any] = {
    "d": {"role": "user", "items": 5, "n": None, "_x": 1},
    "s": "A text, a {0} text",
    "l": [{"a": 1}, {"a": 2}],
    "f": len,
}
EXPRESSIONS = (
    *("d.role", "d['role']", "d.items", "d['items']", "d.missing", "d['missing'] is undefined", "d._x"),
    *("d['_x']", "d.n", "d.get('role')", "d.items()", "d.__class__", "d['__class__']", "d.pop('role')"),
    *("d.missing.more", "d['missing']['more']", "d.update({'a': 1})", "d.clear()", "d[0]", "d[none]"),
    *("s.upper()", "s.upper", "s['upper']()", "s.split(',')", "s.format(d.__class__)", "s.format(1)"),
    *("s.format_map({})", "s.__class__", "s.missing", "s[0]", "s[:3]", "s.startswith('A')", "s._x"),
    *(
        "l[0].a",
        "l.append(1)",
        "l | map(attribute='a') | list",
        "l[5]",
        "f(l)",
        "l.__len__()",
        "s.join(['a'])",
    ),
    *("namespace(a=1).a", "namespace(a=d).a.role", "namespace().b", "namespace(a=1).__class__"),
    *(
        "namespace(a=1)._Namespace__attrs",
        "namespace(a=f).a(l)",
        "namespace(a=s.upper).a()",
        "cycler('a').next()",
    ),
)
LOOPS = (
    "{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}",
    "{{ loop.previtem.a }}{{ loop.nextitem.a }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}",
    "{{ loop.changed(x.a) }}{{ loop.cycle('a', 'b') }}{{ loop._iterator }}",
    "{{ 'n'.join(['a', x.a | string]) }}{{ x.get('a') }}{% if loop.first %}{% continue %}{% endif %}{{ x }}",
)


def outcome(environment: ImmutableSandboxedEnvironment, source: str) -> str:
    try:
        return environment.from_string(source).render(VALUES)
    except Exception as exc:  # noqa: BLE001 - any way to fail must be the same
        return f"{type(exc).__name__}: {exc}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_give_the_same_results(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert outcome(ENVIRONMENT, source) == outcome(PLAIN, source)


@pytest.mark.parametrize("body", LOOPS)
def test_loops_give_the_same_results(body: str) -> None:
    source = "{% for x in l %}" + body + "{% endfor %}"
    assert outcome(ENVIRONMENT, source) == outcome(PLAIN, source)


@pytest.mark.parametrize("expression", ["d.__class__.__mro__", "d.update({})", "s.format(d).__class__.x"])
def test_unsafe_expressions_are_rejected(expression: str) -> None:
    with pytest.raises((SecurityError, UndefinedError)):
        ENVIRONMENT.from_string("{{ " + expression + " }}").render(VALUES)


def test_attributes_of_a_namespace_are_hidden() -> None:
    assert not isinstance(ENVIRONMENT.getattr(Namespace(a=1), "_Namespace__attrs"), dict)
