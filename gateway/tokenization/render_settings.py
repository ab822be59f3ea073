"""Render settings of conversations, each with the proof of its cut points.

A setting is a template, the variables of a request and the day. Requests name theirs by a hash of the fields
that make it, so that it is looked up at once.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from threading import Lock
from typing import Any, Final

from gateway.tokenization.chat_template import Message, PromptError, Template, TooCostly
from gateway.tokenization.message_frame import MessageFrame, frame_of
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.sandbox.render_budget import probe
from gateway.tokenization.template_reading import Dates, Markup, compares_messages, dates_of, markup_of
from gateway.tokenization.template_stability import CutRefusal, Proof, Stubs, prove

#  Stand-ins for a request's tools behind a stub: that only their number of none or some matters there is part
#  of the
# proof, which has other ones in the whole text.
STUB_TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
]
OTHER_TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": name, "description": "e", "parameters": {"type": "object"}}}
    for name in ("other", "g")
]
#  Proofs take tens of milliseconds and kilobytes per setting; a fleet has a handful.
MAX_SETTINGS: Final = 64
# Requests with other tools share a setting, so there are more of these.
MAX_NAMES: Final = 10_000
MAX_VARIABLES_CHARS: Final = 4096
STEP_UNITS: Final = 60_000
"""Units of the renderings of one step of a proof, which runs beside requests: one or two milliseconds."""
PROBE_BASE_UNITS: Final = 200
MAX_USES: Final = 4096
MAX_WRONG: Final = 4096
"""Templates with wrong cuts that are remembered."""
MAX_REASONS: Final = 6
"""Reasons that a status shows."""


@dataclass(slots=True, eq=False)
class RenderSetting:
    """Render setting: the template, its variables behind a stub, and the proof of its cut points, which runs
    a step at a time. `stubs` and `refusals` are its result; `stubs` is None until it is complete, and empty
    if it `is_costly`: the proof takes too much. `uses` counts the prompts that were put together, by the cut
    and the features that they rely on; `num_units` those of the budget that the proof took."""

    template: Template
    markup: Markup
    variables: Mapping[str, Any]
    now: datetime
    stubs: Stubs | None = None
    refusals: Sequence[CutRefusal] = ()
    is_costly: bool = False
    uses: dict[int, int] = field(default_factory=dict)
    num_units: int = 0
    _proof: Generator[None, None, Proof] | None = None
    _frames: dict[CutPoint | None, MessageFrame | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def render(self, messages: Sequence[Message], with_other_tools: bool = False) -> str:
        variables = {**self.variables, "tools": OTHER_TOOLS} if with_other_tools else self.variables
        return self.template.render(messages, variables, self.now)

    def render_user(self, content: str, cut: CutPoint | None = None) -> str | None:
        """Text of a user's plain message, alone or behind a cut; None if it has to be rendered."""
        if cut not in self._frames:
            self._frames[cut] = frame_of(lambda message: self._behind(cut, message))
        frame = self._frames[cut]
        return frame.around(content) if frame else None

    def _behind(self, cut: CutPoint | None, message: Message) -> str | None:
        try:
            if cut is None:
                return self.render([message])
            stub = self.stubs[cut] if self.stubs else None
            return stub.rest(self.render([*stub.messages, message])) if stub else None
        except PromptError:
            return None

    def prove(self, marks: Sequence[str]) -> bool:
        """Run one step of the proof, a millisecond or two. Returns True once the proof is complete: where a
        probe takes too much, there are no cut points."""
        if self.stubs is None and self._lock.acquire(blocking=False):
            try:
                probe(True)
                if self._proof is None:
                    self._proof = prove(self._probe, self.template.conversation, self.markup, marks)
                end = self.num_units + STEP_UNITS
                while self.num_units < end:
                    next(self._proof)
            except StopIteration as done:
                self.take(done.value)
            except TooCostly:
                self.take(None)
            finally:
                probe(False)
                self._lock.release()
        return self.stubs is not None

    def take(self, proof: Proof | None, num_units: int = 0) -> None:
        """Take a complete proof, perhaps made elsewhere for `num_units`; None if it takes too much."""
        self.num_units += num_units
        self.is_costly = proof is None
        self.refusals = proof.refusals if proof is not None else ()
        self.stubs = proof.stubs if proof is not None else {}

    def is_new_use(self, use: int) -> bool:
        """True for the first prompt of its kind, the second, the fourth, and so on: probes are few, and the
        kinds of real prompts are tried by themselves."""
        num = self.uses.get(use, 0) + 1
        return num & (num - 1) == 0

    def count_use(self, use: int) -> None:
        """Count a prompt that was put together."""
        if len(self.uses) >= MAX_USES and use not in self.uses:
            self.uses.clear()
        self.uses[use] = self.uses.get(use, 0) + 1

    def _probe(self, messages: Sequence[Message], with_other_tools: bool) -> str:
        try:
            return self.render(messages, with_other_tools and bool(self.variables.get("tools")))
        finally:
            self.num_units += PROBE_BASE_UNITS + self.template.num_units


class WrongCuts:
    """Templates for which a proof turned out wrong, by their source: they are never cut again, also after
    they were loaded again."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, template: Template) -> bool:
        return self._digest(template) in self._digests

    def add(self, template: Template) -> None:
        self._digests[self._digest(template)] = None
        while len(self._digests) > MAX_WRONG:
            self._digests.popitem(last=False)

    def _digest(self, template: Template) -> bytes:
        return hashlib.sha256(template.source.encode(errors="surrogatepass")).digest()


WRONG_CUTS: Final = WrongCuts()
"""Wrong cuts of this process: loads after a reload of the configuration know of them."""

CHECK_FAILED: Final = "a check failed: an assembled prompt differed from the whole"
COMPARES: Final = "the template compares whole messages, so that a repeated one may change an earlier one"


@dataclass(frozen=True, slots=True)
class _Nature:
    """Properties of a template that are found once. `why` it is never cut; empty where a proof decides."""

    markup: Markup
    dates: Dates
    why: str


def _nature(template: Template, wrong: WrongCuts) -> _Nature:
    dates = dates_of(template)
    why = CHECK_FAILED if template in wrong else COMPARES if compares_messages(template) else dates.why
    return _Nature(markup_of(template), dates, why)


class RenderSettings:
    """Render settings of one model, for one day. `cuts` are the special tokens at which text can be cut."""

    def __init__(
        self, cuts: Sequence[str], templates: Mapping[str, Template], wrong: WrongCuts = WRONG_CUTS
    ) -> None:
        self._cuts = cuts
        self._wrong = wrong
        self._natures = {t: _nature(t, wrong) for t in templates.values()}
        self._has_dates = any(nature.dates.formats for nature in self._natures.values())
        self._day = date.min
        self._by_name: dict[bytes, RenderSetting | None] = {}
        self._by_variables: dict[tuple[Template, str], RenderSetting] = {}

    def __repr__(self) -> str:
        return f"RenderSettings({len(self._by_variables)} of {len(self._natures)} templates)"

    def find(
        self, name: bytes, now: datetime, make: Callable[[], RenderSetting | None]
    ) -> RenderSetting | None:
        """Setting of that name, made when it is new; None where conversations are rendered whole."""
        self._begin_day(now)
        if name not in self._by_name:
            setting = make()
            if len(self._by_name) >= MAX_NAMES:
                self._by_name = {}
            self._by_name[name] = setting
            return setting
        return self._by_name.get(name)

    def _begin_day(self, now: datetime) -> None:
        """Forget settings of another day, if a template prints the day."""
        if self._has_dates and now.date() != self._day:
            self._day, self._by_name, self._by_variables = now.date(), {}, {}

    def of(self, template: Template, variables: Mapping[str, Any], now: datetime) -> RenderSetting | None:
        self._begin_day(now)
        nature = self._natures[template]
        if nature.why or template in self._wrong:
            return None
        shared = {**variables, "tools": STUB_TOOLS} if variables["tools"] else variables
        try:
            key = template, json.dumps([shared, nature.dates.of(now)])
        except (TypeError, ValueError):
            return None
        if key not in self._by_variables:
            if len(self._by_variables) >= MAX_SETTINGS or len(key[1]) > MAX_VARIABLES_CHARS:
                return None
            self._by_variables[key] = RenderSetting(template, nature.markup, shared, now)
        return self._by_variables[key]

    def prove(self, setting: RenderSetting) -> bool:
        """Run one step of a setting's proof. Returns True once the proof is complete."""
        return setting.prove(self._cuts)

    @property
    def num_units(self) -> int:
        """Units of the budget that the proofs took."""
        return sum(setting.num_units for setting in self._by_variables.values())

    def tier(self, template: Template) -> tuple[bool, str]:
        """Rendering of a template: True if conversations cost only their new messages, and the reason."""
        if template in self._wrong:
            return False, CHECK_FAILED
        if why := self._natures[template].why:
            return False, why
        settings = [setting for (of, _), setting in self._by_variables.items() if of is template]
        done = [setting for setting in settings if setting.stubs is not None]
        cuts = sorted({cut.name.lower() for setting in done for cut in setting.stubs or ()})
        refused = list(dict.fromkeys(str(each) for setting in done for each in setting.refusals))
        if cuts:
            whole = f"; whole where it has {_some(refused)}" if refused else ""
            return True, f"proved in {len(done)} settings at the cuts {', '.join(cuts)}{whole}"
        if not done:
            return False, "no setting is proved yet"
        if any(setting.is_costly for setting in done):
            return False, "its proofs take too much time or memory"
        why = f": {_some(refused)}" if refused else ": no special token stands where a message begins"
        return False, f"no cut point is proved in {len(done)} settings{why}"

    def stop(self, template: Template) -> bool:
        """Stop cutting conversations of `template`, for good; False if they were not cut."""
        is_stopped = template in self._wrong or bool(self._natures[template].why)
        self._wrong.add(template)
        self._by_name, self._by_variables = {}, {}
        return not is_stopped


def _some(reasons: Sequence[str]) -> str:
    more = f", and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    return ", ".join(reasons[:MAX_REASONS]) + more
