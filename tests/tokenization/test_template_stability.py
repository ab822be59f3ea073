"""Cut points of templates, derived from the template alone."""

from datetime import datetime

import pytest

from gateway.tokenization import template_stability
from gateway.tokenization.chat_template import Message, Template, conversation
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.template_stability import (
    BEHIND,
    Stub,
    Stubs,
    compares_messages,
    dates_of,
    features,
    markup_of,
    prove,
)
from tests.support.corpus import TEMPLATES, answer, assistant, call, system, text_part, user

NOW = datetime(2024, 7, 26)
MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>")
LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content or '') + '<|im_end|>' }}{% endfor %}"


def template(name: str) -> Template:
    return Template((TEMPLATES / f"{name}.jinja").read_text("utf-8"))


def proved(given: Template, marks: tuple[str, ...] = MARKS) -> Stubs:
    def render(messages: list[Message], with_other_tools: bool) -> str:
        return given.render(messages, {"bos_token": "<s>", "tools": None, "add_generation_prompt": True}, NOW)

    steps = prove(render, given.conversation, markup_of(given), marks)  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            stubs: Stubs = done.value
            return stubs


def names(mask: int) -> set[str]:
    known = ("CALLS", "REASONING", "USER", "LATE_SYSTEM", "MARKUP", "IRREGULAR")
    return {name for name in known if getattr(template_stability, name) & mask}


def behind(stub: Stub) -> set[str]:
    return names(stub.allowed >> BEHIND)


@pytest.mark.parametrize("name", ["chatml", "llama3", "parts"])
def test_templates_that_never_look_ahead_have_cut_points_everywhere(name: str) -> None:
    stubs = proved(template(name))
    assert set(stubs) == set(CutPoint)
    assert all({"CALLS", "REASONING", "USER", "LATE_SYSTEM"} <= behind(stub) for stub in stubs.values())


def test_reasoning_dropped_from_earlier_turns() -> None:
    stubs = proved(template("qwen3"))
    assert set(stubs) == set(CutPoint)
    assert {"CALLS", "REASONING", "MARKUP", "USER"} <= behind(stubs[CutPoint.TURN])
    assert "REASONING" in behind(stubs[CutPoint.STEP])
    assert "USER" not in behind(stubs[CutPoint.STEP])  # the next question drops the reasoning


def test_system_messages_collected_in_front() -> None:
    stubs = proved(template("r1"))
    assert {CutPoint.LEAD, CutPoint.TURN, CutPoint.TURN_LED} <= set(stubs)
    assert all("LATE_SYSTEM" not in behind(stub) for stub in stubs.values())


def test_roles_that_must_alternate() -> None:
    stubs = proved(template("gemma"))
    assert set(stubs) == {CutPoint.TURN}
    assert names(stubs[CutPoint.TURN].allowed) == {"USER", "REASONING"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[-1].content }}" + LOOP,
        "{% for m in messages | reverse %}{{ '<|im_start|>' ~ m.content }}{% endfor %}",
        "{{ messages | tojson }}",
        "no marks{% for m in messages %}{{ m.content }}{% endfor %}",
    ],
)
def test_templates_without_cut_points(source: str) -> None:
    assert proved(Template(source)) == {}


def test_without_marks_there_are_no_cut_points() -> None:
    assert proved(Template(LOOP), ()) == {}


def test_a_stub_is_separated_from_the_rest() -> None:
    stub = proved(Template(LOOP))[CutPoint.TURN]
    assert stub.rest("<|im_start|>useru<|im_end|><|im_start|>assistanta<|im_end|>") is None
    whole = "<|im_start|>useru<|im_end|><|im_start|>assistanta<|im_end|><|im_start|>userx"
    rest = stub.rest(whole)
    assert rest and rest.startswith(stub.mark) and stub.text + rest == whole


# markup -------------------------------------------------------------------------------------------


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
        ("{{ strftime_now('%H:%M') }}", None),
        ("{{ strftime_now(form) }}", None),
        ("{{ strftime_now('%d' + '%H') }}", None),
        ("{% set f = strftime_now %}{{ f('%d') }}", None),
    ],
)
def test_dates_printed_by_a_template_are_found(source: str, dates: tuple[str, ...] | None) -> None:
    found = dates_of(Template(source))
    assert (None if found is None else sorted(found(NOW))) == (None if dates is None else sorted(dates))


# features -----------------------------------------------------------------------------------------

MARKUP = template_stability.Markup(("<a>", "<t>"), ("<t>",))
ODD = template_stability.ODD


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([user("x")], template_stability.USER),
        ([user("x"), assistant("y")], template_stability.USER),
        ([system("x")], 0),
        ([user("x"), system("y")], template_stability.USER | template_stability.LATE_SYSTEM),
        ([user("x"), user("y")], template_stability.USER | template_stability.IRREGULAR),
        ([assistant("x")], template_stability.IRREGULAR),
        (
            [user("x"), assistant(None, tool_calls=[call("f", "{}")])],
            template_stability.USER | template_stability.CALLS,
        ),
        ([answer("r")], template_stability.CALLS | template_stability.IRREGULAR),
        ([user("x"), assistant("y", reasoning="z")], template_stability.USER | template_stability.REASONING),
        ([user("x"), assistant("<t>")], template_stability.USER | template_stability.MARKUP),
        (
            [user("x"), assistant("y", reasoning="<t>")],
            template_stability.USER | template_stability.REASONING | template_stability.MARKUP,
        ),
        ([user("x", name="n")], template_stability.USER | template_stability.NAMED),
    ],
)
def test_features(messages: list[Message], found: int) -> None:
    assert features(conversation(messages, "string"), "", MARKUP) == found
    assert features(conversation(messages, "openai"), "", MARKUP) == found


@pytest.mark.parametrize(
    "message",
    [
        user("a <t>"),
        user("<a>"),
        assistant("<a>"),
        system("<a>"),
        answer("<t>"),
        {"role": "developer", "content": "x"},
        {"role": "critic", "content": "x"},
        user("x", task="t"),
        assistant("x", reasoning=5),
        answer("x") | {"tool_call_id": 5},
        assistant(None, tool_calls=[call("f", "{}", index=0)]),
        assistant(None, tool_calls=[{"function": {"name": "f", "arguments": "{}", "more": 1}}]),
        assistant(None, tool_calls=[{"function": {"name": 5}}]),
    ],
)
def test_messages_without_a_known_feature_are_odd(message: Message) -> None:
    assert features(conversation([message], "string"), "", MARKUP) & ODD


def test_parts_with_more_than_text_are_odd() -> None:
    plain = conversation([user([text_part("a"), text_part("b")])], "openai")
    cached = conversation([user([text_part("a", cache_control={})])], "openai")
    assert not features(plain, "", MARKUP) & ODD
    assert features(cached, "", MARKUP) & ODD
    split = conversation([user([text_part("<"), text_part("a>")])], "string")
    assert not features(split, "", MARKUP) & ODD


def test_a_template_that_compares_whole_messages_is_recognized() -> None:
    """A repeated question would change the text of the first one."""
    loop = "{% for m in messages %}{% if COND %}x{% endif %}{{ m.content }}{% endfor %}"
    assert compares_messages(Template(loop.replace("COND", "m == messages[-1]")))
    assert compares_messages(Template(loop.replace("COND", "messages[-1] != m")))
    assert not compares_messages(Template(loop.replace("COND", "m.role == 'user'")))
    assert not compares_messages(Template(loop.replace("COND", "loop.last")))
