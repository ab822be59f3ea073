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

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from os.path import commonprefix
from typing import Final

from gateway.tokenization.chat_template import Message, PromptError
from gateway.tokenization.conversation_features import (
    BEHIND,
    CALLS,
    NAMES,
    TOLERABLE,
    USER,
    features,
    kind_of,
)
from gateway.tokenization.probe_conversations import STUBS, CutPoint, before_and_behind, behind_stub
from gateway.tokenization.template_reading import Markup

# Features that every conversation has that is cut there.
PLAIN: Final[Mapping[CutPoint, int]] = {
    CutPoint.LEAD: USER << BEHIND,
    CutPoint.TURN: USER | USER << BEHIND,
    CutPoint.TURN_LED: USER | USER << BEHIND,
    CutPoint.STEP: USER | CALLS,
    CutPoint.STEP_LED: USER | CALLS,
}

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


class ProbeOutcome(Enum):
    """ProbeOutcome of a probe: right, or how it differed from its two pieces."""

    RIGHT = ""
    LATER = "what follows changes the text before"
    EARLIER = "what came before changes the text behind"
    UNTRIED = "no probe is without words of the template"
    REJECTED = "the template rejects it together with others"


@dataclass(frozen=True, slots=True)
class CutRefusal:
    """Feature with which conversations are not cut there, as a bit, 0 where none is ever cut; and how a probe
    came out wrong."""

    cut: CutPoint
    feature: int
    how: ProbeOutcome

    def __str__(self) -> str:
        side = "behind" if self.feature >> BEHIND else "before"
        name = NAMES.get(self.feature >> BEHIND or self.feature, "a plain conversation")
        where = (
            f"{name} {side} {self.cut.name.lower()}" if self.feature else f"{name} at {self.cut.name.lower()}"
        )
        return f"{where}: {self.how.value}"


@dataclass(frozen=True, slots=True)
class Proof:
    """Stubs of the cuts that are proved, and what was refused, each for its reason."""

    stubs: Stubs
    refusals: Sequence[CutRefusal] = ()


def prove(render: Render, parse: Parse, markup: Markup, marks: Sequence[str]) -> Generator[None, None, Proof]:
    """Prove the cuts of a template by some thousand short renderings, which it yields before.

    `marks` are special tokens at which text can be cut without changing a token.
    """
    stubs: dict[CutPoint, Stub] = {}
    refusals: list[CutRefusal] = []
    for cut in CutPoint:
        stub = _stub(render, parse, cut, marks)
        if stub is None:
            continue
        tries: Tries = []
        changed, starts = 0, dict[str, str]()
        for befores, afters in before_and_behind(cut, markup.tried, markup.numbers):
            rested, lost = yield from _rested(render, parse, stub, markup, afters)
            changed |= lost
            for before in befores:
                tries += yield from _tries(render, parse(before), rested, markup, starts)
        allowed, refused = _allowed(cut, tries, changed)
        refusals += refused
        if allowed is not None:
            stubs[cut] = replace(stub, allowed=allowed)
    return Proof(stubs, refusals)


def _stub(render: Render, parse: Parse, cut: CutPoint, marks: Sequence[str]) -> Stub | None:
    """Stub of a cut: its text reaches up to the last mark before the next message's own text; None if there
    is none."""
    messages = parse(STUBS[cut])
    texts = [_try(render, [*messages, *parse(after)], False) for after in behind_stub(cut)]
    start = commonprefix([text for text in texts if text is not None])
    at, mark = max(((start.rfind(mark), mark) for mark in marks), default=(-1, ""))
    return stub_of(parse, cut, start[:at], mark, 0) if at >= 0 else None


def stub_of(parse: Parse, cut: CutPoint, text: str, mark: str, allowed: int) -> Stub:
    """Stub of a cut of which the text, the mark and the allowed features are known."""
    messages = parse(STUBS[cut])
    return Stub(messages, text, mark, allowed, kind_of(messages[-1]), behind_stub(cut)[0][0]["role"])


@dataclass(frozen=True, slots=True)
class _Rest:
    """Rendering behind a stub, and its features."""

    messages: Sequence[Message]
    text: str
    found: int


def _rested(
    render: Render, parse: Parse, stub: Stub, markup: Markup, afters: Sequence[list[Message]]
) -> Generator[None, None, tuple[list[_Rest], int]]:
    """Renderings behind a stub; and the features of those that change the stub's own text. Conversations with
    these are rendered whole, when it counts."""
    rested, lost = [], 0
    for after in (parse(each) for each in afters):
        yield
        text = _try(render, [*stub.messages, *after], False)
        found = features(after, stub.kind, markup) << BEHIND
        rest = stub.rest(text) if text is not None else None
        if rest is not None:
            rested.append(_Rest(after, rest, found))
        elif text is not None:
            lost |= found
    return rested, lost


Tries = list[tuple[int, ProbeOutcome]]
"""Probes: the features of each, and how it came out."""


def _tries(
    render: Render,
    before: Sequence[Message],
    rested: Sequence[_Rest],
    markup: Markup,
    known: dict[str, str],
) -> Generator[None, None, Tries]:
    """Outcomes of `before` with all that may follow. `known` has the text of each run before the cut, with
    what followed it first."""
    wholes = []
    for rest in rested:
        yield
        wholes.append(_try(render, [*before, *rest.messages], True))
    if all(whole is None for whole in wholes):
        return []  # then nothing is ever cached
    found = features(before, "", markup)
    starts = [_start(whole, rest.text) for whole, rest in zip(wholes, rested, strict=True)]
    expected = next((start for start in starts if start is not None), None)
    if expected is not None:
        expected = known.setdefault(repr(before), expected)
    return [
        (found | rest.found, _outcome(whole, start, expected))
        for whole, start, rest in zip(wholes, starts, rested, strict=True)
    ]


def _outcome(whole: str | None, start: str | None, expected: str | None) -> ProbeOutcome:
    if whole is None:
        return ProbeOutcome.REJECTED
    if start is None:
        return ProbeOutcome.EARLIER
    return ProbeOutcome.RIGHT if start == expected else ProbeOutcome.LATER


def _try(render: Render, messages: Sequence[Message], with_other_tools: bool) -> str | None:
    try:
        return render(messages, with_other_tools)
    except PromptError:
        return None


def _start(whole: str | None, rest: str) -> str | None:
    """Text before the cut; None where the rest came out otherwise, or the whole was rejected."""
    return whole[: len(whole) - len(rest)] if whole is not None and whole.endswith(rest) else None


def _allowed(cut: CutPoint, tries: Tries, changed: int = 0) -> tuple[int | None, list[CutRefusal]]:
    """Features under which nothing came out wrong, each of them seen to come out right, None if the plain
    ones fail; and the others, each with the first probe that came out wrong with it. `changed` are features
    that were seen to change what came before."""
    right = {found for found, outcome in tries if outcome is ProbeOutcome.RIGHT}
    wrong: dict[int, ProbeOutcome] = {}
    for found, outcome in tries:
        if outcome is not ProbeOutcome.RIGHT:
            wrong.setdefault(found, outcome)
    allowed = PLAIN[cut]

    def fault(mask: int) -> ProbeOutcome | None:
        return next((outcome for found, outcome in wrong.items() if found & ~mask == 0), None)

    if fault(allowed) or not any(found & ~allowed == 0 for found in right):
        lost = ProbeOutcome.LATER if changed else ProbeOutcome.UNTRIED
        return None, [CutRefusal(cut, 0, fault(allowed) or lost)]
    refused = []
    for bit in (each << side for each in TOLERABLE for side in (0, BEHIND)):
        more = allowed | bit
        if any(found & bit and found & ~more == 0 for found in right) and fault(more) is None:
            allowed = more
        elif how := fault(more) or (ProbeOutcome.LATER if bit & changed else None):
            refused.append(CutRefusal(cut, bit, how))
    return allowed, refused
