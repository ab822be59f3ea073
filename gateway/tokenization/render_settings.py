"""Render settings of conversations, each with the proof of its cut points.

A setting is a template, the variables of a request and the day. Requests name theirs by a hash of the fields
that make it, so that it is looked up at once.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from threading import Lock
from typing import Any, Final

from gateway.tokenization.chat_template import Message, PromptError, Template, TooCostly
from gateway.tokenization.message_frame import MessageFrame, frame_of
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.sandbox.render_budget import probe
from gateway.tokenization.template_stability import (
    Markup,
    Stubs,
    compares_messages,
    dates_of,
    markup_of,
    prove,
)

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


@dataclass(slots=True, eq=False)
class RenderSetting:
    """Render setting: the template, its variables behind a stub, and the proof of its cut points, which runs
    a step at a time. `stubs` are its result; None until it is complete."""

    template: Template
    markup: Markup
    variables: Mapping[str, Any]
    now: datetime
    stubs: Stubs | None = None
    _proof: Generator[None, None, Stubs] | None = None
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
        """Run one step of the proof, a millisecond or so. Returns True once the proof is complete: where a
        probe takes too much, there are no cut points."""
        if self.stubs is None and self._lock.acquire(blocking=False):
            try:
                probe(True)
                if self._proof is None:
                    self._proof = prove(self._probe, self.template.conversation, self.markup, marks)
                next(self._proof)
            except StopIteration as done:
                self.stubs = done.value
            except TooCostly:
                self.stubs = {}
            finally:
                probe(False)
                self._lock.release()
        return self.stubs is not None

    def _probe(self, messages: Sequence[Message], with_other_tools: bool) -> str:
        return self.render(messages, with_other_tools and bool(self.variables.get("tools")))


@dataclass(frozen=True, slots=True)
class _Nature:
    """Properties of a template that are found once. `dates` is None if it prints more than the day."""

    markup: Markup
    dates: Callable[[datetime], tuple[str, ...]] | None


class RenderSettings:
    """Render settings of one model, for one day. `cuts` are the special tokens at which text can be cut."""

    def __init__(self, cuts: Sequence[str], templates: Mapping[str, Template]) -> None:
        self._cuts = cuts
        self._natures = {t: _Nature(markup_of(t), dates_of(t)) for t in templates.values()}
        for each in filter(compares_messages, templates.values()):
            del self._natures[each]
        self._has_dates = any(
            nature.dates and nature.dates(datetime.min) for nature in self._natures.values()
        )
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
        nature = self._natures.get(template)
        if nature is None or nature.dates is None:
            return None
        shared = {**variables, "tools": STUB_TOOLS} if variables["tools"] else variables
        try:
            key = template, json.dumps([shared, nature.dates(now)])
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

    def tier(self, template: Template) -> tuple[bool, str]:
        """Rendering of a template: True if conversations cost only their new messages, and the reason."""
        nature = self._natures.get(template)
        if nature is None:
            return False, "a check failed: an assembled prompt differed from the whole"
        if nature.dates is None:
            return False, "the template prints more of the time than the day, or an unknown part of it"
        proofs = [setting.stubs for (of, _), setting in self._by_variables.items() if of is template]
        done = [stubs for stubs in proofs if stubs is not None]
        cuts = sorted({cut.name.lower() for stubs in done for cut in stubs})
        if cuts:
            return True, f"proved in {len(done)} settings at the cuts {', '.join(cuts)}"
        return False, f"no cut is proved in {len(done)} settings" if done else "no setting is proved yet"

    def stop(self, template: Template) -> bool:
        """Stop cutting conversations of `template`; False if they were not cut."""
        stopped = self._natures.pop(template, None)
        self._by_name, self._by_variables = {}, {}
        return stopped is not None
