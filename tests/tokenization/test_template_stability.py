"""Cut points of templates, derived from the template alone."""

from datetime import datetime

import pytest

from gateway.tokenization import conversation_features
from gateway.tokenization.chat_template import Message, Template
from gateway.tokenization.conversation_features import BEHIND
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.template_reading import markup_of
from gateway.tokenization.template_stability import ProbeOutcome, Proof, Stub, Stubs, prove
from tests.support.corpus import TEMPLATES

NOW = datetime(2024, 7, 26)
MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>")
LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content or '') + '<|im_end|>' }}{% endfor %}"


def template(name: str) -> Template:
    return Template((TEMPLATES / f"{name}.jinja").read_text("utf-8"))


def proved(given: Template, marks: tuple[str, ...] = MARKS) -> Stubs:
    return proof(given, marks).stubs


def proof(given: Template, marks: tuple[str, ...] = MARKS) -> Proof:
    def render(messages: list[Message], with_other_tools: bool) -> str:
        return given.render(messages, {"bos_token": "<s>", "tools": None, "add_generation_prompt": True}, NOW)

    steps = prove(render, given.conversation, markup_of(given), marks)  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Proof = done.value
            return found


def names(mask: int) -> set[str]:
    known = ("CALLS", "REASONING", "USER", "LATE_SYSTEM", "MARKUP", "IRREGULAR")
    return {name for name in known if getattr(conversation_features, name) & mask}


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


# one reason each -----------------------------------------------------------------------------------

INCREMENTAL = """
{%- set n = namespace(user=-1, reply=-1, replies=[], before=-1) %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{% set n.user = loop.index0 %}{% endif %}
  {%- if m.role == 'assistant' and not m.tool_calls %}
    {%- set n.before = n.reply %}{% set n.reply = loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}{% set i = loop.index0 %}{% set p = messages[i - 1] if i else {} %}
  {{- '<|im_start|>' + m.role }}
  {%- if m.name is defined and (NAME) %}{{ ' ' + m.name }}{% endif %}
  {%- if m.reasoning_content is defined and (THOUGHT) %}{{ '(' + m.reasoning_content + ')' }}{% endif %}
  {%- if TEXT %}{{ m.content }}{% endif %}
  {%- for c in m.tool_calls or [] %}{% if CALL %}{{ '[' + c.function.name + ']' }}{% endif %}{% endfor %}
  {{- MORE }}{{ '<|im_end|>' }}
{%- endfor %}"""
PLACES = {"NAME": "true", "THOUGHT": "true", "TEXT": "true", "CALL": "true", "MORE": "''"}
LATER, EARLIER, REJECTED = ProbeOutcome.LATER.value, ProbeOutcome.EARLIER.value, ProbeOutcome.REJECTED.value
MARKED = "('</think>' in m.content and m.role == 'assistant')"

#  Where the template is changed, and all that is refused for it, at cuts without a system message.
MUTANTS = [
    ("THOUGHT", "i > n.user", {f"a question behind step: {LATER}"}),
    ("THOUGHT", "i >= n.reply", {f"reasoning before {cut}: {LATER}" for cut in ("turn", "step")}),
    (
        "THOUGHT",
        "i >= n.before",
        {f"reasoning before turn: {LATER}", f"a question behind step: {LATER}"}
        | {f"roles out of order behind step: {LATER}"},
    ),
    ("TEXT", "not (m.tool_calls and i < n.reply)", {f"text beside a call before step: {LATER}"}),
    ("TEXT", "not (m.tool_calls and i < n.user)", {f"a question behind step: {LATER}"}),
    (
        "TEXT",
        f"not ({MARKED} and not m.tool_calls and i < n.reply)",
        {f"words of the template in a reply before {cut}: {LATER}" for cut in ("turn", "step")},
    ),
    (
        "TEXT",
        f"not ({MARKED} and m.tool_calls and i < n.reply)",
        {f"words of the template beside a call before step: {LATER}"},
    ),
    ("NAME", "i >= n.user", {f"names before step: {LATER}"}),
    ("CALL", "i > n.user", {f"a question behind step: {LATER}"}),
    ("CALL", "i > n.reply", {f"a plain conversation at step: {EARLIER}"}),
    (
        "MORE",
        "raise_exception('late') if m.name is defined and i > 6 else ''",
        {f"names behind {cut}: {REJECTED}" for cut in ("turn", "step")},
    ),
    (
        "MORE",
        "'!' if m.role == 'system' and i < n.user else ''",
        {f"a late system message before step: {LATER}"},
    ),
    ("MORE", "'last' if loop.last else ''", set()),
    (
        "MORE",
        "'many' if messages | length > 6 else ''",
        {f"a plain conversation at {cut}: {EARLIER}" for cut in ("turn", "step")},
    ),
    (
        "MORE",
        "'long' if messages[0].content | length > 99 < messages[-1].content | length else ''",
        {f"a plain conversation at {cut}: {EARLIER}" for cut in ("lead", "turn", "step")},
    ),
    (
        "MORE",
        "messages | selectattr('role', 'equalto', 'tool') | list | length",
        {f"a plain conversation at step: {EARLIER}", f"calls before turn: {EARLIER}"}
        | {f"calls behind {cut}: {LATER}" for cut in ("lead", "turn")}
        | {f"text beside a call behind {cut}: {LATER}" for cut in ("lead", "turn")},
    ),
    (
        "MORE",
        "p.content if p.role == 'tool' and 'Final' in m.content and i < n.reply else ''",
        {f"words of the template in a reply before {cut}: {LATER}" for cut in ("turn", "step")},
    ),
]


def changed(place: str, by: str) -> Template:
    source = INCREMENTAL
    for name, default in PLACES.items():
        source = source.replace(name, by if name == place else default)
    return Template(source)


def refused(given: Template) -> set[str]:
    return {str(each) for each in proof(given).refusals if not each.cut.name.endswith("LED")}


def test_a_template_that_changes_nothing_later_is_cut_everywhere_with_everything() -> None:
    found = proof(changed("", ""))
    assert set(found.stubs) == set(CutPoint) and found.refusals == []


@pytest.mark.parametrize(("place", "by", "expected"), MUTANTS)
def test_a_change_of_a_template_is_refused_for_its_own_reason(
    place: str, by: str, expected: set[str]
) -> None:
    """Each differs in one place from the template above, which is never refused anything."""
    assert refused(changed(place, by)) == expected


def test_a_template_with_words_of_every_probe_is_refused_for_that() -> None:
    untried = proof(Template(LOOP + "{{ 'y' in messages[0].content }}")).refusals
    assert {each.how for each in untried} == {ProbeOutcome.UNTRIED}


# what came before, with what follows ---------------------------------------------------------------

THOUGHT = "{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}"
SAID = (
    "{{ '<|im_start|>' + m.role }}{% if CONDITION %}THOUGHT{% endif %}{{ (m.content or '') + '<|im_end|>' }}"
)
LAST_IS_LONG = """{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- if asked and asked[-1].content is string and asked[-1].content | length > 20 %}long{% endif %}"""


def test_a_long_question_is_followed_by_a_short_one_that_is_the_last() -> None:
    """The text in front changes with the last question's length, which a step's own text does not show."""
    stubs = proved(Template(LAST_IS_LONG + LOOP))
    for cut in (CutPoint.STEP, CutPoint.STEP_LED):
        assert "USER" not in behind(stubs[cut])
    assert "USER" in behind(proved(Template(LOOP))[CutPoint.STEP])


@pytest.mark.parametrize("number", [3, 5, 8, 11])
def test_reasoning_that_is_dropped_after_a_number_of_steps_is_not_cut(number: int) -> None:
    said = SAID.replace("THOUGHT", THOUGHT).replace("CONDITION", f"loop.revindex0 < {number}")
    stubs = proved(Template(f"{{% for m in messages %}}{said}{{% endfor %}}"))
    for cut in (CutPoint.TURN, CutPoint.STEP):
        assert cut in stubs and "REASONING" not in names(stubs[cut].allowed)
    said = SAID.replace("THOUGHT", THOUGHT).replace("CONDITION", "true")
    kept = proved(Template(f"{{% for m in messages %}}{said}{{% endfor %}}"))
    assert all("REASONING" in names(kept[cut].allowed) for cut in (CutPoint.TURN, CutPoint.STEP))
