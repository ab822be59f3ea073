"""Filters and tests give the results of jinja's own."""

import pytest

from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.sandbox.priced_filters import priced_filters, priced_tests
from tests.support.template_outcomes import UNLIMITED, outcome

EXPRESSIONS = (
    *(
        "s|upper",
        "s|lower",
        "s|capitalize",
        "s|title",
        "s|trim",
        "' a '|trim",
        "'xax'|trim('x')",
        "7|trim",
        "d|upper",
    ),
    *(
        "s|replace('t', 'T')",
        "s|replace('t', 'T', 1)",
        "5|replace('5', 6)",
        "s|replace('', '-')",
        "none|replace('N', 'n')",
    ),
    *(
        "s|length",
        "messages|count",
        "missing|length",
        "5|length",
        "s|string",
        "d|string",
        "5|string",
        "d|length",
    ),
    *(
        "[1, 'a', none, d]|join",
        "[1, 2]|join(', ')",
        "messages|join('-', attribute='role')",
        "missing|join",
        "s|join('.')",
    ),
    *(
        "'%s %d'|format(s, 5)",
        "'%(a)s'|format(a=1)",
        "'%s'|format(d)",
        "'%s'|format(1, a=2)",
        "'%5.2f'|format(1.5)",
    ),
    *(
        "'12'|int",
        "'x'|int",
        "'0x1f'|int(base=16)",
        "'x'|int(7)",
        "1.9|int",
        "none|int",
        "'1.5'|float",
        "'x'|float(2.0)",
    ),
    *(
        "1.456|round(2)",
        "1.4|round(0, 'ceil')",
        "1.5|round|int",
        "1.5|round(1, 'no')",
        "-3|abs",
        "[1, 2]|sum",
    ),
    *("messages|sum(attribute='missing')", "[{'n': 1}, {'n': 2}]|sum(attribute='n', start=3)", "['a']|sum"),
    *(
        "'a\nb\n\nc'|indent",
        "'a\nb'|indent(2, true)",
        "'a\nb'|indent('> ')",
        "'a\n\nb'|indent(2, blank=true)",
    ),
    *(
        "range(7)|batch(3)|list",
        "range(7)|batch(3, 'x')|list",
        "range(7)|slice(3)|list",
        "range(7)|slice(3, 'x')|list",
    ),
    *(
        "messages|first",
        "[]|first",
        "messages|last",
        "s|last",
        "range(3)|last",
        "s|reverse",
        "[1, 2]|reverse|list",
    ),
    *(
        "messages|map(attribute='role')|list",
        "messages|map(attribute='no', default='d')|list",
        "['a']|map('upper')|list",
    ),
    *(
        "messages|selectattr('role', 'equalto', 'a')|list",
        "messages|rejectattr('role', '==', 'a')|list|length",
    ),
    *(
        "[1, 2, 3]|select('odd')|list",
        "[1, 2, 3]|reject('even')|list",
        "['', 'a']|select|list",
        "[1, 2]|select('gt', 1)|list",
    ),
    *(
        "messages|selectattr('role', 'in', ['a'])|list|length",
        "messages|selectattr('no')|list",
        "none|list",
        "missing|list",
    ),
    *(
        "[3, 1, 2]|sort",
        "['b', 'A']|sort",
        "messages|sort(attribute='role', reverse=true)|map(attribute='role')|list",
    ),
    *(
        "['a', 'b', 'A']|unique|list",
        "messages|unique(attribute='role')|list|length",
        "[1, 3]|max",
        "[]|min",
        "'bca'|min",
    ),
    *(
        "messages|groupby('role')|list",
        "d|dictsort",
        "d|dictsort(by='value')",
        "d|items|list",
        "missing|items|list",
    ),
    *(
        "missing|default('x')",
        "''|d('x', true)",
        "none|default('x')",
        "s|truncate(4)",
        "s|truncate(4, true, '..', 0)",
    ),
    *(
        "s|wordcount",
        "'<a>'|e",
        "'<a>'|escape|string",
        "'<a>'|safe",
        "('<a>'|e)|forceescape",
    ),
    *(
        "d|list",
        "s|list",
        "d.values()|list",
        "d|first",
        "messages|map('length')|list",
        "[[1], [2]]|map('first')|list",
    ),
    *(
        "5 is odd",
        "4 is even",
        "9 is divisibleby 3",
        "s is lower",
        "s is upper",
        "'a' is in ['a']",
        "1 is in 5",
        "s is eq s",
    ),
    *(
        "3 is gt 2",
        "3 is lessthan 2",
        "s is string",
        "d is mapping",
        "messages is iterable",
        "s is sequence",
        "none is none",
    ),
    *(
        "s is defined",
        "no is undefined",
        "5 is number",
        "true is boolean",
        "5 is integer",
        "'a' is sameas 'a'",
        "d is callable",
    ),
    *(
        "'upper' is filter",
        "'odd' is test",
        "1.5 is float",
        "1.5 is odd",
        "d == d",
        "d is ne d",
        "5 is lower",
    ),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_results_are_those_of_jinja(expression: str) -> None:
    source = "{{ " + expression + " }}"
    assert outcome(ENVIRONMENT, source) == outcome(UNLIMITED, source)


def test_all_filters_of_the_sandbox_are_compared() -> None:
    used = " ".join(EXPRESSIONS)
    assert [name for name in priced_filters() if f"|{name}" not in used and name != "tojson"] == []
    assert set(priced_tests()) == set(UNLIMITED.tests)


@pytest.mark.parametrize("test", ["odd", "even", "divisibleby 2"])
def test_a_text_is_not_formatted_by_a_test(test: str) -> None:
    assert outcome(ENVIRONMENT, "{{ '%d' is " + test + " }}").startswith("TypeError")
