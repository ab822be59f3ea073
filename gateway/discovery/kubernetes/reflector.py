"""Reflector: the state machine that keeps a copy of the API's objects. Pure.

    LISTING ──last page──► WATCHING ──event──► WATCHING   the object is replaced, the version moves on
       ▲                      │ ended, silent: watch again at the same version
       │                      │ failed: pause, then watch again at the same version
       └─ 410, an unreadable line, or `relist_s` since the list

| while    | failure                     | then                                                             |
|----------|-----------------------------|------------------------------------------------------------------|
| LISTING  | any                         | pause, list again from the first page                            |
| WATCHING | 410 as a status or an event | list again; after a second one without an event between, a pause |
| WATCHING | 404: the kind is gone       | a long pause, list again                                         |
| WATCHING | 401, 403, 429, 5xx, cut     | pause, watch again at the same version                           |

The objects stay whatever fails. A complete list replaces them, so that a deletion that no event reported is
found; it is not bound to a version, so that an API server restored from a backup is followed as well.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic

from gateway.discovery.kubernetes.api_objects import Page, T, WatchEvent

MAX_OBJECTS = 20_000
"""Objects of one source; a pod takes some 1 KB."""
MAX_PAGES = 2_000
"""Pages of one list: a server may send fewer objects than were asked for, but not pages without end."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 30.0
ABSENT_PAUSE_S = 30.0
"""Pause where the kind is not served: its definition is installed later, or never."""
STEADY_S = 5.0
"""A watch that was open for so long ends a series of failures."""


class SyncPhase(Enum):
    LISTING = "listing"
    WATCHING = "watching"


@dataclass(frozen=True, slots=True)
class ListPage:
    """Command: get the next page; `token` is empty for the first one."""

    token: str


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """Command: watch from a version, for at most `timeout_s`."""

    version: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Command: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """Failed request: the status (0 without one), the reason for people, the pause that the server asked for.
    `is_unreadable`: bytes arrived that are no events or list."""

    reason: str
    status: int = 0
    retry_after_s: float = 0.0
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """Object that changed; None: it is gone."""

    name: str
    object: T | None


@dataclass(slots=True)
class Reflector(Generic[T]):
    """Copy of the API's objects by name; `synced_at` is when the API last confirmed them, None before the
    first list; `relists` counts lists after the first by reason; `last_reason` is the last failure's."""

    rng: random.Random
    relist_s: float = 600.0
    objects: Mapping[str, T] = field(default_factory=dict)
    phase: SyncPhase = SyncPhase.LISTING
    version: str = ""
    synced_at: float | None = None
    relists: Counter[str] = field(default_factory=Counter)
    num_failures: int = 0
    last_reason: str = ""
    _pages: dict[str, T] = field(default_factory=dict)
    _token: str = ""
    _num_pages: int = 0
    _pause_s: float = 0.0
    _listed_at: float = 0.0
    _opened_at: float | None = None
    _in_series: int = 0
    _num_expired: int = 0

    def next(self, now: float) -> ListPage | OpenWatch | Pause:
        """Return what to do now."""
        if self._pause_s:
            pause, self._pause_s = Pause(self._pause_s), 0.0
            return pause
        left_s = self.relist_s - (now - self._listed_at)
        if self.phase is SyncPhase.WATCHING and left_s <= 0.0:
            self._list_again("interval")
        return ListPage(self._token) if self.phase is SyncPhase.LISTING else OpenWatch(self.version, left_s)

    def page(self, now: float, page: Page[T]) -> bool:
        """Take a page. Returns True if the list is complete, and `objects` new."""
        self._pages |= {item.metadata.name: item for item in page.items or ()}
        if len(self._pages) > MAX_OBJECTS:
            self.failed(now, ApiFailure(f"more than {MAX_OBJECTS:,} objects; select fewer"))
            return False
        if page.metadata.next_page:
            self._token, self._num_pages = page.metadata.next_page, self._num_pages + 1
            if self._num_pages >= MAX_PAGES:
                self.failed(now, ApiFailure(f"a list of more than {MAX_PAGES:,} pages"))
            return False
        self.objects, self._pages, self._token, self._num_pages = self._pages, {}, "", 0
        self.version, self.phase = page.metadata.resource_version, SyncPhase.WATCHING
        self.synced_at = self._listed_at = now
        return True

    def opened(self, now: float) -> None:
        """Note that the API accepted a watch."""
        self._opened_at = self.synced_at = now

    def event(self, now: float, event: WatchEvent[T]) -> ObjectChange[T] | None:
        """Take a line of the watch. Returns the change of an object; None where none changed."""
        if event.error is not None:
            error = event.error
            self.failed(
                now, ApiFailure(error.message or error.reason or "error without a message", error.code)
            )
            return None
        self.version, self.synced_at = event.version or self.version, now
        self._in_series = self._num_expired = 0
        assert isinstance(self.objects, dict)
        if (found := event.object) is not None:
            name = found.metadata.name
            if len(self.objects) >= MAX_OBJECTS and name not in self.objects:
                self.failed(now, ApiFailure(f"more than {MAX_OBJECTS:,} objects; select fewer"))
                return None
            self.objects[name] = found
            return ObjectChange(name, found)
        if event.deleted is not None:
            known = self.objects.get(event.deleted.name)
            if known is not None and known.metadata.uid == event.deleted.uid:
                del self.objects[event.deleted.name]
                return ObjectChange(event.deleted.name, None)
        return None

    def closed(self, now: float) -> None:
        """Note that a watch ended as it should, or was silent for too long."""
        self._opened_at = None
        self._pause_s = FIRST_PAUSE_S * self.rng.random()

    def failed(self, now: float, failure: ApiFailure) -> None:
        """Decide what follows a failed request or an error within a watch."""
        if self._opened_at is not None and now - self._opened_at >= STEADY_S:
            self._in_series = self._num_expired = 0
        self._opened_at = None
        self.num_failures, self.last_reason = self.num_failures + 1, failure.reason
        if self.phase is SyncPhase.WATCHING and failure.status == 410:
            self._num_expired += 1
            self._list_again("expired")
            if self._num_expired == 1:
                return
        elif self.phase is SyncPhase.WATCHING and failure.status == 404:
            self._list_again("absent")
        elif self.phase is SyncPhase.WATCHING and failure.is_unreadable:
            self._list_again("unreadable")
        self._pages, self._token, self._num_pages = {}, "", 0
        self._pause_s = self._back_off(failure)

    def _back_off(self, failure: ApiFailure) -> float:
        if failure.status == 404:
            return ABSENT_PAUSE_S
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._in_series, 10), LAST_PAUSE_S)
        self._in_series += 1
        asked_s = min(failure.retry_after_s, LAST_PAUSE_S)
        return max(pause_s * (0.5 + self.rng.random() / 2), asked_s)

    def _list_again(self, reason: str) -> None:
        self.relists[reason] += 1
        self.phase, self._pages, self._token, self._num_pages = SyncPhase.LISTING, {}, "", 0
