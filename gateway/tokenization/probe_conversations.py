"""Probe conversations that test where a chat template can be cut (see template_stability.py).

Each feature that a conversation may have (`conversation_features.py`) is in runs of messages of its own,
before a cut and behind it: text beside a call, reasoning, several calls at once, names, parts, empty texts,
roles out of order, and words that the template looks for. A template may change any of them once something
else comes, or came, so each run is tried with several others: a new question, a plain reply, another call, a
whole turn, many turns.

    every run before × the plain runs behind      every run behind × the plain runs before

Calls before and behind a cut share ids, which those of stubs do not: some templates look names up by them.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import product
from typing import Any, Final

from gateway.tokenization.chat_template import Message

Run = list[Message]
Groups = list[tuple[list[Run], list[Run]]]
MIN_TURNS: Final = 3
MAX_TURNS: Final = 6
"""Turns of the longest probe: of more turns, or at least more messages, than each number of the template, as
far as this allows."""


class CutPoint(IntEnum):
    """Cut points, by the messages before and behind them."""

    LEAD = 0  # system | user
    TURN = 1  # … assistant | user
    TURN_LED = 2  # system … assistant | user
    STEP = 3  # … tool | assistant
    STEP_LED = 4  # system … tool | assistant


_SYSTEM, _USER, _ASSISTANT = (
    {"role": role, "content": text} for role, text in (("system", "s"), ("user", "u"), ("assistant", "a"))
)


def _call(*names: str, text: str | None = None, tag: str = "call", **more: Any) -> Message:
    """Message that calls functions of these names; ids have nine characters, which some templates ask for."""
    calls = [
        {"id": f"{tag}{i}0000", "type": "function", "function": {"name": name, "arguments": '{"k": "v"}'}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls, **more}


def _result(number: int = 0, tag: str = "call", **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": f"{tag}{number}0000", "content": " r\n", **more}


def _with(message: Message, text: Any = " x\n\ny ", **more: Any) -> Message:
    return {**message, "content": text, **more}


def _reasoned(text: str) -> Message:
    """Reasoning by both of its names: engines read one of them."""
    return {"reasoning": text, "reasoning_content": text}


_S, _U, _A = _with(_SYSTEM), _with(_USER), _with(_ASSISTANT)
_R = _result()
_THOUGHT = _with(_ASSISTANT, "b", **_reasoned("why \n"))
_PARTS = [{"type": "text", "text": "p"}, {"type": "text", "text": " q\n"}]
_OTHER: Run = [_call("g", tag="next"), _result(tag="next")]

#  Stand-ins for all messages before a cut.
_STUB_STEP: Run = [_call("f", tag="stub"), _result(tag="stub")]
STUBS: Mapping[CutPoint, Run] = {
    CutPoint.LEAD: [_SYSTEM],
    CutPoint.TURN: [_USER, _ASSISTANT],
    CutPoint.TURN_LED: [_SYSTEM, _USER, _ASSISTANT],
    CutPoint.STEP: [_USER, *_STUB_STEP],
    CutPoint.STEP_LED: [_SYSTEM, _USER, *_STUB_STEP],
}

#  One feature each, but for the last ones, which have several.
QUESTIONS: list[Message] = [_with(_USER, ""), _with(_USER, _PARTS), _with(_USER, name="n")]
REPLIES: list[Message] = [
    _with(_ASSISTANT, ""),
    _with(_ASSISTANT, _PARTS),
    _with(_ASSISTANT, name="n"),
    _THOUGHT,
    _with(_THOUGHT, ""),
    _with(_ASSISTANT, **_reasoned("")),
]


def _steps(first: str, second: str) -> list[Run]:
    """Steps of an agent that calls these functions."""
    return [
        [_call(first), _R],
        [_call(first, second), _R, _result(1)],
        [_call(first, text=""), _with(_R, _PARTS)],
        [_call(first, text="text"), _R],
        [_call(first, text=" \n\n"), _R],
        [_call(first, **_reasoned("r")), _R],
        [_call(first), _result(name=first)],
        [_call(first, second, text="text", **_reasoned("r")), _R, _result(1, name=second)],
    ]


#  Those behind a cut call another function by the same id: some templates look it up.
STEPS, NEXT_STEPS = _steps("f", "g"), _steps("g", "f")
_STEP, _SAID, _NEXT = STEPS[0], STEPS[3], NEXT_STEPS[0]

#  Roles out of order (`conversation_features.UNUSUAL`), each in a run that ends as regular ones do.
UNUSUAL_TURNS: list[Run] = [
    [_U, _U, _A],
    [_U, _A, _A],
    [_U, _A, *_STEP, _A],
    [_U, _A, _R, _A],
    [_U, _R, _A],
    [_U, *_STEP, _U, _A],
    [_U, _call("f"), _U, _A],
]
UNUSUAL_FIRST: list[Run] = [[_A], [*_STEP, _A]]
LATE: list[Run] = [
    [_U, _A, _S, _U, _A],
    [_U, _S, _A],
    [_U, _S, *_STEP, _A],
    [_U, *_STEP, _S, _A],
    [_U, _A, _S, _A],
    [_U, _A, _S, _S, _U, _A],
]

BEFORE_LEAD: list[Run] = [[_S], [_with(_SYSTEM, "")], [_with(_SYSTEM, _PARTS)], [_with(_SYSTEM, name="n")]]
BEFORE_TURN: list[Run] = [
    [_U, _A],
    [_U, *_STEP, _A],
    [_U, *_STEP, _A, _U, _A],
    *([question, _A] for question in QUESTIONS),
    *([_U, reply] for reply in REPLIES),
    *([_U, reply, _U, _A] for reply in REPLIES),
    *([_U, *step, _A] for step in STEPS[1:]),
    [_U, *_SAID, *_OTHER, _A],
    *UNUSUAL_FIRST,
    *UNUSUAL_TURNS,
    *LATE,
]
BEFORE_STEP: list[Run] = [
    [_U, *_STEP],
    [_U, *_STEP, *_OTHER],
    [_U, _A, _U, *_STEP],
    *([_U, *step] for step in STEPS[1:]),
    *([_U, *step, *_OTHER] for step in STEPS[3:]),
    *([question, *_STEP] for question in QUESTIONS),
    *([_U, reply, _U, *_STEP] for reply in REPLIES),
    [_U, *_SAID, _A, _U, *_OTHER],
    _STEP,
    [_A, _U, *_STEP],
    [_U, _A, _R],
    [_U, _R],
    [_U, _U, *_STEP],
    [_U, _A, *_STEP],
    [_U, _A, _A, _U, *_STEP],
    [_U, *_STEP, _U, *_OTHER],
    [_U, _call("f"), _U, *_OTHER],
    [_U, _A, _S, _U, *_STEP],
    [_U, _S, *_STEP],
    [_U, _S, _A, _U, *_STEP],
    [_U, *_STEP, _S, *_OTHER],
    [_U, _S, _S, *_STEP],
]
AFTER_TURN: list[Run] = [
    [_U],
    [_U, _A, _U],
    [_U, *_NEXT],
    [_U, *_NEXT, _A, _U],
    *([question, _A, _U] for question in QUESTIONS),
    *([_U, reply, _U] for reply in REPLIES),
    *([_U, *step] for step in NEXT_STEPS[1:]),
    *([_U, *step, _A, _U] for step in NEXT_STEPS[3:]),
    [_U, *NEXT_STEPS[3], *_OTHER],
    [_U, _A],
    *([*run, _U] for run in UNUSUAL_TURNS),
    [_U, _U],
    [_U, _R],
    [_U, *_NEXT, _U],
    [_U, _call("f"), _U],
    *([*run, _U] for run in LATE),
    [_U, _S],
    [_U, _A, _S],
]
AFTER_STEP: list[Run] = [
    [_A],
    _NEXT,
    [_A, _U],
    [*_NEXT, _A, _U, *_OTHER],
    *([reply] for reply in REPLIES),
    *([reply, _U, _A] for reply in REPLIES),
    *NEXT_STEPS[1:],
    *([*step, _A, _U] for step in NEXT_STEPS[3:]),
    *([_A, question, _A] for question in QUESTIONS),
    [_A, _A],
    [_A, *_NEXT],
    [_A, _R],
    [*_NEXT, _U],
    [_call("f"), _U],
    [_A, _U, _U],
    [_A, _U, _R],
    [_A, _S],
    [_A, _U, _S, _A],
    [*_NEXT, _S],
    [_A, _S, *_NEXT],
    [_A, _S, _S, _U],
]
#  Runs of the lists above that are tried with all on the other side: the first ones, and richer ones.
NUM_PLAIN: Final = 4
HEADS = [[_with(_USER, text)] for text in ("1", "2", " ")]


def behind_stub(cut: CutPoint) -> list[Run]:
    """Messages that may begin behind a cut: their texts differ as soon as a message contributes any."""
    if cut < CutPoint.STEP:
        return HEADS
    return [[_A], _NEXT, NEXT_STEPS[-1]]


def before_and_behind(cut: CutPoint, words: Sequence[str], numbers: Sequence[int] = ()) -> Groups:
    """Groups of messages before and behind `cut`, to be tried in all pairs.

    The assistant's messages contain each of `words`, alone and two together. There are more messages, and
    longer texts, than each of `numbers`.
    """
    befores, afters = _runs(cut)
    rich, many, far = _several(cut), _long_before(cut, numbers), _long_behind(cut, numbers)
    plain, follow = [*befores[:NUM_PLAIN], rich[0], *many], [*afters[:NUM_PLAIN], rich[1], *far]
    groups = [(befores, follow), (plain, afters[NUM_PLAIN:]), _wordy(cut, numbers)]
    texts = [text for word in words for text in (word, f"x{word}y", f"x{word}y{word}z")]
    pairs = [f"x{one}y{other}z" for one, other in product(words, repeat=2) if one != other]
    for said, to_follow in ((texts, [*follow[:NUM_PLAIN], *far]), (pairs, follow[1:3])):
        groups.append((plain[:1], [behind for text in said for behind in _saying(cut, text)]))
        if cut is not CutPoint.LEAD:
            groups.append(([before for text in said for before in _having_said(cut, text)], to_follow))
    lead = [_S] if cut in (CutPoint.TURN_LED, CutPoint.STEP_LED) else []
    return [
        ([[*lead, *before] for before in befores], afters) for befores, afters in groups if befores and afters
    ]


def _several(cut: CutPoint) -> tuple[Run, Run]:
    """Runs with several features before a cut, and behind it."""
    if cut is CutPoint.LEAD:
        return [_with(_SYSTEM, _PARTS)], [_U, *NEXT_STEPS[-1], _THOUGHT, _U]
    if cut >= CutPoint.STEP:
        return [_U, _THOUGHT, _U, *STEPS[-1]], [*NEXT_STEPS[-1], _THOUGHT, _U, _A, _U]
    return [_U, *STEPS[-1], _THOUGHT, _U, _A], [_U, *NEXT_STEPS[-1], _THOUGHT, _U]


def _runs(cut: CutPoint) -> tuple[list[Run], list[Run]]:
    if cut is CutPoint.LEAD:
        return BEFORE_LEAD, AFTER_TURN
    return (BEFORE_STEP, AFTER_STEP) if cut >= CutPoint.STEP else (BEFORE_TURN, AFTER_TURN)


def _num_turns(numbers: Sequence[int]) -> int:
    counts = [min(number + 1, MAX_TURNS) for number in numbers if number < 2 * MAX_TURNS]
    return max([MIN_TURNS, *counts])


def _long_before(cut: CutPoint, numbers: Sequence[int]) -> list[Run]:
    """Many turns before a cut, and many steps of one."""
    num = _num_turns(numbers)
    if cut is CutPoint.LEAD:
        return [[_S]]
    steps = [_U, *num * _STEP]
    return [steps] if cut >= CutPoint.STEP else [num * [_U, _A], [*steps, _A]]


def _long_behind(cut: CutPoint, numbers: Sequence[int]) -> list[Run]:
    """Many turns behind a cut, and many steps of one."""
    num = _num_turns(numbers)
    steps = num * _NEXT
    if cut >= CutPoint.STEP:
        return [[*_NEXT, *num * [_A, _U]], steps]
    return [[*num * [_U, _A], _U], [_U, *steps]]


def _wordy(cut: CutPoint, numbers: Sequence[int]) -> tuple[list[Run], list[Run]]:
    """Runs before and behind a cut with texts that are longer than a number of the template."""
    before, behind = _runs(cut)[0][:1], _runs(cut)[1][:NUM_PLAIN]
    for text in ("w" * (number + 1) for number in numbers):
        asked, said, result = _with(_USER, text), _with(_ASSISTANT, text), _with(_R, text)
        if cut is CutPoint.LEAD:
            before, behind = [*before, [_with(_SYSTEM, text)]], [*behind, [asked]]
        elif cut >= CutPoint.STEP:
            before, behind = [*before, [asked, _call("f"), result]], [*behind, [said]]
        else:
            before, behind = [*before, [asked, said]], [*behind, [asked]]
    return before, behind


def _saying(cut: CutPoint, text: str) -> list[Run]:
    """Runs behind a cut in which the assistant says a text."""
    said, called, thought = _with(_ASSISTANT, text), _call("g", text=text), _with(_THOUGHT, text)
    runs = [[said, _U], [called, _R], [called, _R, _A, _U], [*_NEXT, said, _U], [thought, _U]]
    return runs if cut >= CutPoint.STEP else [[_U, *run] for run in runs]


def _having_said(cut: CutPoint, text: str) -> list[Run]:
    """Runs before a cut in which the assistant has said a text."""
    said, called, thought = _with(_ASSISTANT, text), _call("f", text=text), _with(_THOUGHT, text)
    if cut < CutPoint.STEP:
        return [[_U, said], [_U, said, _U, _A], [_U, called, _R, _A], [_U, *_STEP, said], [_U, thought]]
    turns = [[_U, said], [_U, *_STEP, said], [_U, thought]]
    return [[_U, called, _R], [_U, called, _R, *_OTHER], *([*turn, _U, *_OTHER] for turn in turns)]
