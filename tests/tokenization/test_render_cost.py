"""Cost of a rendering by the number of its messages, and what follows from it for the event loop."""

from datetime import datetime

import pytest

from gateway.tokenization.chat_template import Message, PromptError, Template, TooCostly
from gateway.tokenization.render_cost import (
    INLINE_UNITS,
    MAX_INLINE_PARTS,
    MIN_INLINE_PARTS,
    SIZES,
    UNKNOWN_PARTS,
    RenderCost,
    cost_through,
    most_messages,
)

NOW = datetime(2024, 7, 26)
LOOP = "{% for m in messages %}{{ m.role + m.content }}BODY{% endfor %}"
BACK = "{% for j in range(loop.index0) %}{% if messages[j].role != 'tool' %}x{% endif %}{% endfor %}"


def most(source: str) -> int:
    template = Template(source)

    def measure(messages: list[Message]) -> int:
        template.render(messages, {"tools": None}, NOW)
        return template.num_units

    return most_messages(measure)  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [RenderCost(70, 12, 0), RenderCost(0, 5, 3), RenderCost(900, 40, 0.5)])
def test_a_cost_is_found_by_three_conversations(cost: RenderCost) -> None:
    found = cost_through([round(cost.units(size)) for size in SIZES])
    assert found.units(100) == pytest.approx(cost.units(100), rel=0.05)


def test_the_most_messages_are_the_last_number_that_fits() -> None:
    cost = RenderCost(100, 10, 1)
    num = cost.most(5000)
    assert cost.units(num) <= 5000 < cost.units(num + 1)
    assert RenderCost(0, 1, 0).most(1e9) == MAX_INLINE_PARTS and RenderCost(9, 1, 0).most(1) == 0


def test_a_template_that_looks_back_each_time_renders_far_fewer_messages() -> None:
    """Units of such a template grow with the square of their number."""
    linear, looking = most(LOOP.replace("BODY", "")), most(LOOP.replace("BODY", BACK))
    assert linear > 4 * looking > 40
    template, num = Template(LOOP.replace("BODY", BACK)), looking
    template.render(num * [{"role": "user", "content": "a"}], {}, NOW)
    assert INLINE_UNITS / 2 < template.num_units <= INLINE_UNITS


def test_the_dearest_kind_of_conversation_counts() -> None:
    calls = LOOP.replace(
        "BODY", "{% for c in m.tool_calls or [] %}{% for i in range(40) %}{{ i }}{% endfor %}{% endfor %}"
    )
    assert most(calls) < most(LOOP.replace("BODY", "")) / 2


def test_a_template_that_rejects_all_of_it_or_takes_too_much_renders_few() -> None:
    def rejects(messages: object) -> int:
        raise PromptError("no")

    def costs(messages: object) -> int:
        raise TooCostly("much", False, False)

    assert most_messages(rejects) == UNKNOWN_PARTS
    assert most_messages(costs) == MIN_INLINE_PARTS
