"""Cut points of chat templates: places before which the rendered text stays the same when messages follow.

A cut stands before a message, where a reply begins (TURN, STEP) or behind the system message (LEAD). A
template is a program, and may look ahead, look back, count, and read messages' texts, so nothing is assumed:
`prove` renders probe conversations, whole and in two pieces,

    whole(before + after)  =  text before the cut  +  rest(stub + after)

where the stub is a few words that stand for all that came before, and its own text is stripped. Each
conversation has features (calls, reasoning, a late system message, …). A cut is used only for conversations
with features that are allowed there, and a feature is allowed when every probe made of allowed features came
out right, and one of them had it. Conversations outside the features are never cut.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from os.path import commonprefix
from typing import Any, Final

from jinja2 import nodes

from gateway.tokenization.chat_template import Message, PromptError, Template
from gateway.tokenization.probe_conversations import STUBS, CutPoint, before_and_behind, behind_stub

# Features of a run of messages, as bits; those behind a cut are shifted.
IRREGULAR, CALLS, REASONING, LATE_SYSTEM, NAMED, MARKUP, USER, ODD = (1 << i for i in range(8))
BEHIND: Final = 16
#  In the order in which they are allowed: where two exclude each other the more wanted one is first.
TOLERABLE: Final[tuple[int, ...]] = (CALLS, REASONING, USER, NAMED, MARKUP, IRREGULAR, LATE_SYSTEM)
# Features that every conversation has that is cut there.
PLAIN: Final[Mapping[CutPoint, int]] = {
    CutPoint.LEAD: USER << BEHIND,
    CutPoint.TURN: USER | USER << BEHIND,
    CutPoint.TURN_LED: USER | USER << BEHIND,
    CutPoint.STEP: USER | CALLS,
    CutPoint.STEP_LED: USER | CALLS,
}

#  Pairs of consecutive roles in a regular conversation; "" is its start, "call" calls tools.
REGULAR: Final = frozenset(
    {("", "system"), ("", "user"), ("system", "user"), ("user", "assistant"), ("user", "call")}
    | {("assistant", "user"), ("call", "tool"), ("tool", "tool"), ("tool", "assistant"), ("tool", "call")}
    | {("user", "system"), ("assistant", "system"), ("tool", "system"), ("system", "assistant")}
)
PLAIN_KEYS: Final = {"role", "content"}
KNOWN_KEYS: Final = PLAIN_KEYS | {"tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name"}
CALL_KEYS: Final = {"id", "index", "function", "type"}

#  String methods by which a template reads a message's text.
READING = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit"}
READING |= {"partition", "rpartition", "replace", "removeprefix", "removesuffix"}
#  A word of a template that is neither markup nor looked for may stand in any message.
MARKUP_CHARACTERS: Final = re.compile(r"[<>|{}\[\]]|[^\x00-\x7f]")
MAX_MARKUP_CHARS: Final = 60
#  Pairs of them are tried in the assistant's text; of more than these, none is allowed there.
MAX_TRIED_MARKUP: Final = 6
#  Templates that print the hour cannot be cut: directives for the day or less.
DAY_ONLY: Final = re.compile(r"(?:[^%]|%-?[aAwdbBmyYjUuVGWFDx%])*")


@dataclass(frozen=True, slots=True)
class Markup:
    """Texts of the template. A conversation is not cut if a message has one of `all`, except the assistant's,
    which may have one of `tried`."""

    all: tuple[str, ...]
    tried: tuple[str, ...]


def markup_of(template: Template) -> Markup:
    """Texts that the template looks for in messages, and its own texts that a message may imitate."""
    looked_for = {text.strip() for text in _looked_for(template.tree)} - {""}
    constants = [node.value for node in template.tree.find_all(nodes.Const) if isinstance(node.value, str)]
    constants += [node.data for node in template.tree.find_all(nodes.TemplateData)]
    stripped = {text.strip() for text in constants}
    printed = {text for text in stripped if 3 <= len(text) <= MAX_MARKUP_CHARS}
    printed = {text for text in printed if MARKUP_CHARACTERS.search(text)}
    tried = tuple(sorted(looked_for)) if len(looked_for) <= MAX_TRIED_MARKUP else ()
    return Markup(tuple(sorted(looked_for | printed)), tried)


def _looked_for(tree: nodes.Template) -> Iterator[str]:
    """Constants that are compared with parts of a text. Whole texts (roles, types) are compared by ==."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in READING:
            yield from _strings(call.args)
    for compare in tree.find_all(nodes.Compare):
        for operand in compare.ops:
            if operand.op in ("in", "notin") and not isinstance(operand.expr, nodes.List | nodes.Tuple):
                yield from _strings([compare.expr])
            elif _is_slice(compare.expr) or _is_slice(operand.expr):
                yield from _strings([compare.expr, operand.expr])
    for each in tree.find_all(nodes.Filter):
        if each.name in ("replace", "split"):
            yield from _strings(each.args)


def _is_slice(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getitem) and not (
        isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str)
    )


def _strings(found: Iterable[nodes.Node]) -> Iterator[str]:
    keys = KNOWN_KEYS | {"function", "arguments", "parameters", "id", "type"}  # asked of messages, not texts
    for node in found:
        if isinstance(node, nodes.Const) and isinstance(node.value, str) and node.value not in keys:
            yield node.value


def compares_messages(template: Template) -> bool:
    """True if the template compares whole messages, as `message == asked[-1]`: then an earlier message may
    change with an equal one that follows, and no conversation can be cut."""
    loops = {
        node.target.name for node in template.tree.find_all(nodes.For) if isinstance(node.target, nodes.Name)
    }
    for compare in template.tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        names = [side for side in sides if isinstance(side, nodes.Name) and side.name in loops]
        if names and not any(isinstance(side, nodes.Const) for side in sides):
            return True
    return False


def dates_of(template: Template) -> Callable[[datetime], tuple[str, ...]] | None:
    """Dates that the template prints; None where it prints more than the day, or an unknown part."""
    names = [node for node in template.tree.find_all(nodes.Name) if node.name == "strftime_now"]
    calls = [call for call in template.tree.find_all(nodes.Call) if call.node in names]
    formats = [text for call in calls for text in _strings(call.args[:1])]
    if len(formats) != len(names) or not all(DAY_ONLY.fullmatch(text) for text in formats):
        return None
    return lambda now: tuple(now.strftime(text) for text in formats)


# --- features ---


def kind_of(message: Message) -> str:
    return "call" if message.get("tool_calls") else message["role"]


def features(messages: Sequence[Message], before: str, markup: Markup) -> int:
    """Features of `messages` that follow a message of the kind `before`."""
    found = 0
    for message in messages:
        kind = "call" if "tool_calls" in message else message["role"]
        if (before, kind) not in REGULAR:
            found |= IRREGULAR
        found |= _feature(message, kind, before, markup)
        before = kind
    return found


def _feature(message: Message, kind: str, before: str, markup: Markup) -> int:
    content, found = message["content"], 0
    if type(content) is str:
        text = content
    elif all(part.keys() == {"type", "text"} and part["type"] == "text" for part in content):
        text = "\n".join(part["text"] for part in content)
    else:
        return ODD
    if kind == "user":
        found |= USER
    elif kind == "tool":
        found |= CALLS
    elif kind == "system":
        found |= LATE_SYSTEM if before else 0
    elif kind not in ("assistant", "call"):
        return ODD
    if len(message) > 2:
        found |= _extra(message, kind)
        text += _reasoning(message) if found & REASONING and not found & ODD else ""
    for each in markup.all:
        if each in text:
            found |= MARKUP if kind in ("assistant", "call") and each in markup.tried else ODD
    return found


def _extra(message: Message, kind: str) -> int:
    """Features of a message with more than text."""
    if not message.keys() <= KNOWN_KEYS:
        return ODD
    found = 0
    if "name" in message:
        found |= NAMED
    if "reasoning" in message or "reasoning_content" in message:
        found |= REASONING if type(_reasoning(message)) is str else ODD
    if "tool_call_id" in message and (kind != "tool" or type(message["tool_call_id"]) is not str):
        found |= ODD
    for call in message.get("tool_calls", ()):
        function = call["function"]
        is_usual = call.keys() <= CALL_KEYS and call.get("index") is None
        is_usual = is_usual and function.keys() == {"arguments", "name"}
        found |= CALLS if is_usual and type(function["name"]) is str else ODD
    return found


def _reasoning(message: Message) -> Any:
    """Reasoning of an assistant's message; engines that know one of its names leave out the other."""
    return message["reasoning"] if "reasoning" in message else message["reasoning_content"]


# --- proof ---

Render = Callable[[Sequence[Message], bool], str]
"""Renders messages to the whole text; with the second argument with other tools, where there are tools."""
Parse = Callable[[object], list[Message]]
"""A request's messages as the template sees them."""


@dataclass(frozen=True, slots=True)
class Stub:
    """Stand-in for all messages before a cut: its messages, its text (up to a special token in the next
    message), the mark at which the rest begins, the features allowed, the kind of the last message and the
    role of the next one, for which alone all this was proved."""

    messages: Sequence[Message]
    text: str
    mark: str
    allowed: int
    kind: str
    next_role: str

    def rest(self, text: str) -> str | None:
        """Text behind the cut in a rendering that begins with the stub; None if it does not."""
        at = len(self.text)
        return text[at:] if text.startswith(self.text) and text.startswith(self.mark, at) else None


Stubs = Mapping[CutPoint, Stub]
"""Stubs by the cuts that a template keeps under one set of variables, perhaps none."""


def prove(render: Render, parse: Parse, markup: Markup, marks: Sequence[str]) -> Generator[None, None, Stubs]:
    """Prove the cuts of a template by a few hundred short renderings, in steps of about a dozen.

    `marks` are special tokens at which text can be cut without changing a token.
    """
    stubs = {}
    for cut in CutPoint:
        stub = _stub(render, parse, cut, marks)
        if stub is None:
            continue
        tries: list[tuple[int, bool]] = []
        for befores, afters in before_and_behind(cut, markup.tried):
            rested = _rested(render, parse, stub, markup, afters)
            for before in befores:
                yield
                tries += _tries(render, parse(before), rested, markup)
        if (allowed := _allowed(cut, tries)) is not None:
            stubs[cut] = replace(stub, allowed=allowed)
    return stubs


def _stub(render: Render, parse: Parse, cut: CutPoint, marks: Sequence[str]) -> Stub | None:
    """Stub of a cut: its text reaches up to the last mark before the next message's own text; None if there
    is none."""
    messages = parse(STUBS[cut])
    texts = [_try(render, [*messages, *parse(after)], False) for after in behind_stub(cut)]
    start = commonprefix([text for text in texts if text is not None])
    at, mark = max(((start.rfind(mark), mark) for mark in marks), default=(-1, ""))
    next_role = behind_stub(cut)[0][0]["role"]
    return Stub(messages, start[:at], mark, 0, kind_of(messages[-1]), next_role) if at >= 0 else None


@dataclass(frozen=True, slots=True)
class _Rest:
    """Rendering behind a stub, and its features."""

    messages: Sequence[Message]
    text: str
    found: int


def _rested(
    render: Render, parse: Parse, stub: Stub, markup: Markup, afters: Sequence[list[Message]]
) -> list[_Rest]:
    rested = []
    for after in (parse(each) for each in afters):
        text = _try(render, [*stub.messages, *after], False)
        rest = stub.rest(text) if text is not None else None
        if rest is not None:  # else the whole is rendered, when it counts
            rested.append(_Rest(after, rest, features(after, stub.kind, markup) << BEHIND))
    return rested


def _tries(
    render: Render, before: Sequence[Message], rested: Sequence[_Rest], markup: Markup
) -> list[tuple[int, bool]]:
    """Outcomes of `before` with all that may follow: the features of each pair, and True if it came out
    right."""
    wholes = [_try(render, [*before, *rest.messages], True) for rest in rested]
    if all(whole is None for whole in wholes):
        return []  # then nothing is ever cached
    found = features(before, "", markup)
    starts = [_start(whole, rest.text) for whole, rest in zip(wholes, rested, strict=True)]
    expected = next((start for start in starts if start is not None), None)
    return [
        (found | rest.found, start is not None and start == expected)
        for start, rest in zip(starts, rested, strict=True)
    ]


def _try(render: Render, messages: Sequence[Message], with_other_tools: bool) -> str | None:
    try:
        return render(messages, with_other_tools)
    except PromptError:
        return None


def _start(whole: str | None, rest: str) -> str | None:
    """Text before the cut; None where the rest came out otherwise, or the whole was rejected."""
    return whole[: len(whole) - len(rest)] if whole is not None and whole.endswith(rest) else None


def _allowed(cut: CutPoint, tries: Sequence[tuple[int, bool]]) -> int | None:
    """Features under which nothing came out wrong, each of them seen to come out right; None if the plain
    ones fail."""
    right = {found for found, is_right in tries if is_right}
    wrong = {found for found, is_right in tries if not is_right}
    allowed = PLAIN[cut]

    def holds(mask: int) -> bool:
        return not any(found & ~mask == 0 for found in wrong)

    if not holds(allowed) or not any(found & ~allowed == 0 for found in right):
        return None
    for bit in (each << side for each in TOLERABLE for side in (0, BEHIND)):
        more = allowed | bit
        if holds(more) and any(found & bit and found & ~more == 0 for found in right):
            allowed = more
    return allowed
