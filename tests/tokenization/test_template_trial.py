"""A trial compiles a template and renders probes, and answers with the code or a reason."""

import marshal
from datetime import datetime

import pytest

from gateway.tokenization.chat_template import Template
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.template_trial import PASSED, tried
from tests.support.corpus import TEMPLATE_NAMES, TEMPLATES

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_usual_templates_pass_and_their_code_renders_the_same(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    variables = {"tools": None, "documents": None, "add_generation_prompt": True}
    answer = tried(source)
    assert answer.startswith(PASSED)
    expected = Template(source).render(USER, variables, datetime(2024, 1, 1))
    copy = source + "{# compiled elsewhere #}"
    ENVIRONMENT.know(copy, marshal.loads(answer[len(PASSED) :]))
    assert ENVIRONMENT.known(copy)
    assert Template(copy).render(USER, variables, datetime(2024, 1, 1)) == expected


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "more time or memory",
        ),
        ("{% if messages|length > 3 %}{{ 'a' * 10**10 }}{% endif %}", "more time or memory"),
        ("{% include 'x' %}", "include"),
        ("{% if %}", "does not compile"),
    ],
)
def test_a_refused_template_is_answered_with_a_reason_of_one_line(source: str, word: str) -> None:
    answer = tried(source).decode()
    assert not answer.startswith(PASSED.decode()) and word in answer and "\n" not in answer


def test_a_template_that_rejects_probes_passes() -> None:
    assert tried("{{ raise_exception('no') }}").startswith(PASSED)
