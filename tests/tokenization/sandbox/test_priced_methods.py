"""Methods of texts, dicts and lists give the results of Python's own."""

import pytest

from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.sandbox.render_budget import GROWING_METHODS, SHRINKING_METHODS
from tests.support.template_outcomes import UNLIMITED, outcome

EXPRESSIONS = (
    *(
        "('<a>'|e).upper()",
        "('a b'|safe).split()",
        "('ab'|safe).strip('a') + '<'",
        "'HTTP 404: %s' % s",
        "'%5.2f%%' % 2.5",
    ),
    *(
        "'2024 (a) %s, %s' % (s, 1)",
        "'%-9s|%+d|%#x' % (s, 5, 255)",
        "'%(a)s' % {'a': 1}",
        "'%d' % s",
        "'%s' % ()",
    ),
    *(
        "s.replace('t', 'TT')",
        "s.replace('t', 'T', 1)",
        "long.replace('line', 'Line')",
        "s.replace(1, 2)",
        "s.replace()",
    ),
    *(
        "', '.join(['a', 'b'])",
        "', '.join(messages|map(attribute='role'))",
        "'-'.join([1])",
        "''.join(s)",
        "'x'.join()",
    ),
    *(
        "s.center(20)",
        "s.ljust(20, '.')",
        "s.rjust(9)",
        "'7'.zfill(3)",
        "'a\tb'.expandtabs(4)",
        "'a\tb'.expandtabs()",
    ),
    *(
        "'a\tb'.expandtabs(tabsize=2)",
        "s.center('x')",
        "s.center(20, 'ab')",
        "s['replace']('t', 'T')",
        "s['center'](9)",
    ),
    *(
        "s.split()",
        "s.split(' ')",
        "s.split('')",
        "long.split('\n')|length",
        "long.split('\n', 2)|length",
        "long.splitlines()[0]",
    ),
    *(
        "s.split(sep=' ', maxsplit=1)",
        "long.split(maxsplit=2)|length",
        "s.split(none, 1)",
        "long.rsplit('\n', 1)[1]",
    ),
    *(
        "s.strip()",
        "'xax'.strip('x')",
        "long.strip('ln')[:5]",
        "long.rstrip()[-4:]",
        "long.rfind('text')",
        "long.rindex('zz')",
    ),
    *(
        "s.startswith('a')",
        "long.startswith(('x', 'line'))",
        "s.endswith('t')",
        "s.find('t')",
        "s.count('t')",
        "long.count('e')",
    ),
    *(
        "s.upper()",
        "long.upper()[:9]",
        "s.title()",
        "s.partition(' ')",
        "long.rpartition('of')[2]",
        "s.isalpha()",
        "s.index('zz')",
    ),
    *(
        "s.removeprefix('a ')",
        "s.removesuffix('text')",
        "s.swapcase()",
        "s.casefold()",
        "s.isdigit()",
        "s.upper(1)",
    ),
    *(
        "d.get('role')",
        "d.get('no', 5)",
        "d.get(1)",
        "d.keys()|list",
        "d.values()|list",
        "d.items()|list",
        "d.copy()",
        "d.get()",
    ),
    *("messages.index(messages[2])", "messages.count(1)", "[1, 2].copy()", "(1, 2).index(2)", "[1].index(5)"),
    *(
        "'{} {}'.format(s, 5)",
        "'{0} {a}'.format(s, a=1)",
        "'{a.role}'.format(a=d)",
        "'{a[role]}'.format(a=d)",
        "'{}'.format()",
    ),
    *(
        "'{:>8}|{:03d}|{:.2f}'.format(s, 7, 1.5)",
        "'{!r}'.format(s)",
        "'{a}'.format_map({'a': 1})",
        "'{}'.format(d)",
        "'{'.format()",
    ),
    *(
        "'{a.__class__}'.format(a=d)",
        "'{:{w}}'.format(s, w=9)",
        "s.format_map(1, 2)",
        "'{a}'.format_map()",
        "'{:x}'.format(255)",
    ),
    *(
        "cycler('a', 'b').next()",
        "joiner('-')() ~ 'x'",
        "loop_is_missing.cycle(1)",
        "s.nope",
        "d.nope()",
        "messages.nope",
    ),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_results_are_those_of_python(expression: str) -> None:
    source = "{% for i in [1] %}{{ " + expression + " }}{% endfor %}"
    assert outcome(ENVIRONMENT, source) == outcome(UNLIMITED, source)


def test_each_method_of_a_text_is_of_one_kind() -> None:
    others = {"format", "format_map", "encode", "maketrans", "translate"}
    assert {*GROWING_METHODS, *SHRINKING_METHODS, *others} == {name for name in dir(str) if name[0] != "_"}
    assert not GROWING_METHODS & SHRINKING_METHODS
