"""What conversations are rendered with, and for each such setting the proof of where it can be cut.

A setting is a template, the variables of a request and the day. Requests name theirs by a hash of the
fields that make it, so that they are looked at once.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from threading import Lock
from typing import Any

from gateway.tokenization.chat_template import Message, PromptError, Template
from gateway.tokenization.message_frame import Frame, frame_of
from gateway.tokenization.probe_conversations import Cut
from gateway.tokenization.template_stability import (
    Markup,
    Stubs,
    compares_messages,
    dates_of,
    markup_of,
    prove,
)

# Behind a stub these stand for a request's tools: that only their number of none or some matters there
# is part of the proof, which has other ones in the whole text.
STUB_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
]
OTHER_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "e", "parameters": {"type": "object"}}}
    for name in ("other", "g")
]
# Each costs tens of milliseconds to prove and kilobytes to keep; a fleet has a handful.
MAX_SETTINGS = 64
# Requests with other tools share a setting, so there are more of these.
MAX_NAMES = 10_000
MAX_VARIABLES_CHARS = 4096


@dataclass(slots=True, eq=False)
class Setting:
    """What a conversation is rendered with: the template, its variables behind a stub, and the proof,
    which is led a step at a time. `stubs` are its result; None until then."""

    template: Template
    markup: Markup
    variables: Mapping[str, Any]
    now: datetime
    stubs: Stubs | None = None
    _proof: Generator[None, None, Stubs] | None = None
    _frames: dict[Cut | None, Frame | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def render(self, messages: Sequence[Message], with_other_tools: bool = False) -> str:
        variables = {**self.variables, "tools": OTHER_TOOLS} if with_other_tools else self.variables
        return self.template.render(messages, variables, self.now)

    def render_user(self, content: str, cut: Cut | None = None) -> str | None:
        """The text of a user's plain message, alone or behind a cut; None where it must be rendered."""
        if cut not in self._frames:
            self._frames[cut] = frame_of(lambda message: self._behind(cut, message))
        frame = self._frames[cut]
        return frame.around(content) if frame else None

    def _behind(self, cut: Cut | None, message: Message) -> str | None:
        try:
            if cut is None:
                return self.render([message])
            stub = self.stubs[cut] if self.stubs else None
            return stub.rest(self.render([*stub.messages, message])) if stub else None
        except PromptError:
            return None

    def prove(self, marks: Sequence[str]) -> bool:
        """One step, of a millisecond or so. Whether the proof is complete."""
        if self.stubs is None and self._lock.acquire(blocking=False):
            try:
                if self._proof is None:
                    self._proof = prove(self._probe, self.template.content_format, self.markup, marks)
                next(self._proof)
            except StopIteration as done:
                self.stubs = done.value
            finally:
                self._lock.release()
        return self.stubs is not None

    def _probe(self, messages: Sequence[Message], with_other_tools: bool) -> str:
        return self.render(messages, with_other_tools and bool(self.variables.get("tools")))


@dataclass(frozen=True, slots=True)
class _Nature:
    """What is found out once about a template. `dates` is None where it prints more than the day."""

    markup: Markup
    dates: Callable[[datetime], tuple[str, ...]] | None


class Settings:
    """The settings of one model, for one day. `cuts` are the special tokens at which text can be cut."""

    def __init__(self, cuts: Sequence[str], templates: Mapping[str, Template]) -> None:
        self._cuts = cuts
        self._natures = {t: _Nature(markup_of(t), dates_of(t)) for t in templates.values()}
        for each in filter(compares_messages, templates.values()):
            del self._natures[each]
        self._has_dates = any(
            nature.dates and nature.dates(datetime.min) for nature in self._natures.values()
        )
        self._day = date.min
        self._by_name: dict[bytes, Setting | None] = {}
        self._by_variables: dict[tuple[Template, str], Setting] = {}

    def __repr__(self) -> str:
        return f"Settings({len(self._by_variables)} of {len(self._natures)} templates)"

    def find(self, name: bytes, now: datetime, make: Callable[[], Setting | None]) -> Setting | None:
        """The setting of that name, made when it is new; None where conversations are rendered whole."""
        self._begin_day(now)
        if name not in self._by_name:
            setting = make()
            if len(self._by_name) >= MAX_NAMES:
                self._by_name = {}
            self._by_name[name] = setting
            return setting
        return self._by_name.get(name)

    def _begin_day(self, now: datetime) -> None:
        """Forget settings of another day, where a template prints the day."""
        if self._has_dates and now.date() != self._day:
            self._day, self._by_name, self._by_variables = now.date(), {}, {}

    def of(self, template: Template, variables: Mapping[str, Any], now: datetime) -> Setting | None:
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
            self._by_variables[key] = Setting(template, nature.markup, shared, now)
        return self._by_variables[key]

    def prove(self, setting: Setting) -> bool:
        """One step of it; whether it is complete."""
        return setting.prove(self._cuts)

    def tier(self, template: Template) -> tuple[bool, str]:
        """Whether conversations of `template` cost their new messages only, and why (not)."""
        nature = self._natures.get(template)
        if nature is None:
            return False, "a check failed: a prompt put together differed from the whole"
        if nature.dates is None:
            return False, "it prints more of the time than the day, or it cannot be told what"
        proofs = [setting.stubs for (of, _), setting in self._by_variables.items() if of is template]
        done = [stubs for stubs in proofs if stubs is not None]
        cuts = sorted({cut.name.lower() for stubs in done for cut in stubs})
        if cuts:
            return True, f"proved in {len(done)} settings at the cuts {', '.join(cuts)}"
        return False, f"no cut is proved in {len(done)} settings" if done else "no setting is proved yet"

    def stop(self, template: Template) -> bool:
        """Cut conversations of `template` no more; False if they were not."""
        stopped = self._natures.pop(template, None)
        self._by_name, self._by_variables = {}, {}
        return stopped is not None
