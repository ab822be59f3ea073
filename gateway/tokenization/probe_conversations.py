"""Probe conversations that test where a chat template can be cut (see template_stability.py).

They are short, because a template is tried on all pairs of messages before and behind a cut, and cover each
kind of message that clients send: calls, several calls at once, results, reasoning, a late system message,
names, parts, empty texts, white space, roles out of order.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import product
from typing import Any

from gateway.tokenization.chat_template import Message


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


def _call(*names: str, **more: Any) -> Message:
    calls = [
        {"id": f"call{i}0000", "type": "function", "function": {"name": name, "arguments": '{"k": "v"}'}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def _result(number: int = 0, **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": f"call{number}0000", "content": " r\n", **more}


def _with(message: Message, text: Any = " x\n\ny ", **more: Any) -> Message:
    return {**message, "content": text, **more}


_S, _U, _A = _with(_SYSTEM), _with(_USER), _with(_ASSISTANT)


def _reasoned(text: str) -> Message:
    """Reasoning by both of its names: engines read one of them."""
    return {"reasoning": text, "reasoning_content": text}


_THOUGHT = _with(_ASSISTANT, "b", **_reasoned("why \n"))
_PARTS = [{"type": "text", "text": "p"}, {"type": "text", "text": " q\n"}]
#  Stand-ins for all messages before a cut.
STUBS: Mapping[CutPoint, list[Message]] = {
    CutPoint.LEAD: [_SYSTEM],
    CutPoint.TURN: [_USER, _ASSISTANT],
    CutPoint.TURN_LED: [_SYSTEM, _USER, _ASSISTANT],
    CutPoint.STEP: [_USER, _call("f"), _result()],
    CutPoint.STEP_LED: [_SYSTEM, _USER, _call("f"), _result()],
}
BEFORE_TURN: list[list[Message]] = [
    [_U, _A],
    [_U, _A, _with(_USER, ""), _A],
    [_with(_USER, _PARTS), _with(_ASSISTANT, _PARTS)],
    [_U, _A, _with(_USER, name="n"), _A],
    [_U, _THOUGHT],
    [_U, _call("f"), _result(), _A],
    [_U, _call("f", "g", **_reasoned("r")), _result(), _result(1), _THOUGHT, _U, _A],
    [_U, _with(_call("f"), "text"), _result(), _call("g"), _result(), _A],
    [_U, _U, _A],
    [_A],
    [_U, _A, _A],
    [_U, _A, _S, _U, _A],
]
BEFORE_STEP: list[list[Message]] = [
    [_U, _call("f"), _result()],
    [_U, _A, _U, _call("f"), _result(), _call("g"), _result()],
    [_U, _THOUGHT, _U, _call("f", "g", **_reasoned("r")), _result(), _result(1, name="g")],
    [_U, _with(_call("f", **_reasoned("r")), "text"), _result()],
    [_with(_USER, _PARTS), _call("f"), _with(_result(), _PARTS)],
    [_U, _U, _call("f"), _result()],
    [_call("f"), _result()],
    [_U, _A, _result()],
    [_U, _A, _S, _U, _call("f"), _result()],
]
BEFORE_LEAD: list[list[Message]] = [[_S], [_with(_SYSTEM, "")], [_with(_SYSTEM, _PARTS)]]
AFTER_TURN: list[list[Message]] = [
    [_U],
    [_with(_USER, ""), _A, _U],
    [_with(_USER, _PARTS), _with(_ASSISTANT, _PARTS), _U],
    [_with(_USER, name="n"), _A, _U],
    [_U, _A],
    [_U, _THOUGHT, _U],
    [_U, _call("f"), _result()],
    [_U, _call("f", "g", **_reasoned("r")), _result(), _result(1), _THOUGHT, _U],
    [_U, _with(_call("f"), "text"), _result(), _call("g"), _result(0, name="g")],
    [_U, _U],
    [_U, _A, _A],
    [_U, _result()],
    [_U, _S],
    [_U, _A, _S, _U],
]
AFTER_STEP: list[list[Message]] = [
    [_A],
    [_call("f"), _result()],
    [_call("f", "g", **_reasoned("r")), _result(), _result(1, name="g")],
    [_with(_call("f"), "text"), _with(_result(), _PARTS), _THOUGHT],
    [_A, _A],
    [_A, _result()],
    [_A, _S],
    [_A, _U],
    [_THOUGHT, _U, _A],
    [_call("f"), _result(), _A, _U, _call("g"), _result()],
    [_call("f", **_reasoned("r")), _result(), _THOUGHT, _U, _A, _U],
]
HEADS = [[_with(_USER, text)] for text in ("1", "2", " ")]


def behind_stub(cut: CutPoint) -> list[list[Message]]:
    """Messages that may begin behind a cut: their texts differ as soon as a message contributes any."""
    return AFTER_STEP[:3] if cut >= CutPoint.STEP else HEADS


def before_and_behind(
    cut: CutPoint, words: Sequence[str]
) -> list[tuple[list[list[Message]], list[list[Message]]]]:
    """Groups of messages before and behind `cut`, to be tried in all pairs.

    The assistant's messages contain each of `words`, alone and two together.
    """
    if cut is CutPoint.LEAD:
        befores, afters = BEFORE_LEAD, AFTER_TURN
    elif cut in (CutPoint.STEP, CutPoint.STEP_LED):
        befores, afters = BEFORE_STEP, AFTER_STEP
    else:
        befores, afters = BEFORE_TURN, AFTER_TURN
    texts = [f"x{one}y{other}z" for one, other in product(words, repeat=2)]
    texts += [text for word in words for text in (word, "x" + word)]
    groups = [(befores, afters), (befores[:1], [after for text in texts for after in _saying(cut, text)])]
    if cut is not CutPoint.LEAD:
        groups.append(([before for text in texts for before in _having_said(cut, text)], afters[1:2]))
    lead = [_S] if cut in (CutPoint.TURN_LED, CutPoint.STEP_LED) else []
    return [([[*lead, *before] for before in befores], afters) for befores, afters in groups]


def _saying(cut: CutPoint, text: str) -> list[list[Message]]:
    said, called = _with(_ASSISTANT, text), _with(_call("f"), text)
    return [[called, _result(), said]] if cut >= CutPoint.STEP else [[_U, said, _U], [_U, called, _result()]]


def _having_said(cut: CutPoint, text: str) -> list[list[Message]]:
    said, called = _with(_ASSISTANT, text), _with(_call("f"), text)
    if cut >= CutPoint.STEP:
        return [[_U, called, _result()], [_U, said, _U, _call("f"), _result()]]
    return [[_U, said], [_U, said, _U, _A], [_U, called, _result(), _A]]
