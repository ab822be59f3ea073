"""Reading of a template's syntax tree: words, numbers, compared messages, dates."""

from datetime import datetime

import pytest

from gateway.tokenization.chat_template import Template
from gateway.tokenization.template_reading import (
    MAX_NUMBER,
    MAX_NUMBERS,
    compares_messages,
    dates_of,
    markup_of,
)

NOW = datetime(2024, 7, 26)


@pytest.mark.parametrize(
    ("source", "tried"),
    [
        ("{{ 'x' if m.content.startswith('Final:') }}", {"Final:"}),
        ("{{ m.content.split('</a>')[-1] }}", {"</a>"}),
        ("{{ 'x' if '</a>' in m.content }}", {"</a>"}),
        ("{{ 'x' if '</a>' not in m.content }}", {"</a>"}),
        ("{{ 'x' if m.content[:3] == 'abc' }}", {"abc"}),
        ("{{ m.content | replace('<b>', '') }}", {"<b>"}),
        ("{{ 'x' if m.role == 'user' }}", set()),
        ("{{ 'x' if m.role in ['user', 'tool'] }}", set()),
        ("{{ 'x' if 'tool_calls' in m }}", set()),
        ("{{ m.content.strip('\\n') }}{{ m.content.split('\\n') }}", set()),
        ("{% set w = 'Final:' %}{{ 'x' if w in m.content }}", {"Final:"}),
        ("{% for w in ['so', 'thus'] %}{{ 'x' if m.content.endswith(w) }}{% endfor %}", {"so", "thus"}),
        ("{% macro f(w, t) %}{{ t.split(w)[0] }}{% endmacro %}{{ f('##', m.content) }}", {"##"}),
        ("{{ 'x' if '<' ~ 'a' + '>' in m.content }}", {"<a>"}),
    ],
)
def test_markup_in_conditions_of_a_template_is_found(source: str, tried: set[str]) -> None:
    assert set(markup_of(Template(source)).tried) == tried


def test_markup_printed_by_a_template_is_found() -> None:
    markup = markup_of(Template("<|user|>{{ '<|im_start|>' + m.role + ': ' + 'plain' }}"))
    assert set(markup.all) == {"<|user|>", "<|im_start|>"}


def test_too_much_markup_is_not_tried() -> None:
    source = "".join(f"{{{{ '<{i}>' in m }}}}" for i in range(9))
    assert markup_of(Template(source)).tried == ()
    assert len(markup_of(Template(source)).all) == 9


@pytest.mark.parametrize(
    ("source", "dates"),
    [
        ("", ()),
        ("{{ strftime_now('%d %b %Y') }}", ("26 Jul 2024",)),
        ("{{ strftime_now('%Y') }}{{ strftime_now('%A') }}", ("2024", "Friday")),
        ("{{ strftime_now(format='%d' + ' ' ~ '%B') }}", ("26 July",)),
        ("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}", ("26",)),
        ("{{ strftime_now('%d') if strftime_now is not none else '1' }}", ("26",)),
        ("{% if not date and strftime_now %}{{ strftime_now('%d') }}{% endif %}", ("26",)),
        ("{% if strftime_now is undefined or date %}x{% else %}{{ strftime_now('%d') }}{% endif %}", ("26",)),
        ("{% set form = '%d' %}{{ strftime_now(form) }}", ("26",)),
    ],
)
def test_dates_printed_by_a_template_are_found(source: str, dates: tuple[str, ...]) -> None:
    found = dates_of(Template(source))
    assert found.why == "" and sorted(found.of(NOW)) == sorted(dates)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ strftime_now('%H:%M') }}", "prints more of the time than the day ('%H:%M')"),
        ("{{ strftime_now('%d' + '%H') }}", "prints more of the time than the day ('%d%H')"),
        ("{% if strftime_now %}{{ strftime_now('%S') }}{% endif %}", "prints more of the time than the day"),
        ("{{ strftime_now(form) }}", "prints an unknown part of the time"),
        ("{% set f = '%d' %}{% set f = f ~ g %}{{ strftime_now(f) }}", "prints an unknown part of the time"),
        ("{{ strftime_now() }}", "prints an unknown part of the time"),
        ("{% set f = strftime_now %}{{ f('%d') }}", "uses the clock otherwise than by calling it"),
        ("{% if strftime_now is defined %}{{ strftime_now }}{% endif %}", "uses the clock otherwise"),
    ],
)
def test_a_template_that_prints_more_than_the_day_has_its_reason(source: str, why: str) -> None:
    assert why in dates_of(Template(source)).why


def test_the_largest_numbers_of_a_template_are_found() -> None:
    assert markup_of(Template("{{ messages[-3:] }}{{ m.content | length > 99 }}{{ true }}")).numbers == (
        3,
        99,
    )
    assert markup_of(Template("{% set keep = 7 %}{{ loop.index > keep }}")).numbers == (7,)
    many = "".join(f"{{{{ m.n == {i} }}}}" for i in range(10, 30))
    assert len(markup_of(Template(many)).numbers) == MAX_NUMBERS
    assert markup_of(Template(f"{{{{ m.n > {MAX_NUMBER + 1} }}}}")).numbers == ()


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' if '/Think' in m.content | lower }}",
        "{% set t = m.content.lower() %}{{ 'x' if '/Think' in t }}",
        "{% for t in [m.text | title] %}{{ 'x' if t.endswith('/Think') }}{% endfor %}",
    ],
)
def test_a_word_is_found_in_any_case_where_the_template_changes_it(source: str) -> None:
    markup = markup_of(Template(source))
    assert markup.folds and markup.tried == () and markup.all == ("/think",)


def test_the_case_of_other_texts_does_not_matter() -> None:
    markup = markup_of(Template("{{ m.role | lower }}{{ p.type | upper }}{{ 'x' if '/Think' in m.content }}"))
    assert not markup.folds and markup.all == ("/Think",)


def test_constants_of_a_template_may_be_compared_with_a_whole_text() -> None:
    assert "go on" in markup_of(Template("{{ 'x' if m.content == 'go on ' }}")).exact


def test_a_template_that_compares_whole_messages_is_recognized() -> None:
    """A repeated question would change the text of the first one."""
    loop = "{% for m in messages %}{% if COND %}x{% endif %}{{ m.content }}{% endfor %}"
    assert compares_messages(Template(loop.replace("COND", "m == messages[-1]")))
    assert compares_messages(Template(loop.replace("COND", "messages[-1] != m")))
    assert not compares_messages(Template(loop.replace("COND", "m.role == 'user'")))
    assert not compares_messages(Template(loop.replace("COND", "loop.last")))


@pytest.mark.parametrize(
    ("source", "is_compared"),
    [
        ("{% for m in messages %}{% for k in m.keys() %}{{ k not in known }}{% endfor %}{% endfor %}", False),
        (
            "{% for t in tools %}{% for k in t.function %}{{ k not in handled }}{% endfor %}{% endfor %}",
            False,
        ),
        ("{% set keys = ['a'] %}{% for k in tools %}{{ k in keys }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.role == messages[0].role }}{% endfor %}", False),
        ("{% for m in messages %}{{ loop.index0 > messages | length - n }}{% endfor %}", False),
        ("{% set rest = messages[1:] %}{% for m in rest %}{{ m != rest[-1] }}{% endfor %}", True),
        ("{% set ns = namespace(last=0) %}{% set ns.last = messages | last %}{{ x == ns.last }}", True),
        ("{% for m in messages %}{{ m in messages[:3] }}{% endfor %}", True),
        ("{{ x in messages | selectattr('role', 'eq', 'user') | list }}", True),
        ("{% for m in messages %}{{ loop.previtem != m }}{% endfor %}", True),
        ("{% for m in messages if m.role == 'user' %}{% set a = m %}{{ a == b }}{% endfor %}", True),
    ],
)
def test_only_messages_are_taken_for_messages(source: str, is_compared: bool) -> None:
    assert compares_messages(Template(source)) is is_compared
