"""Property of the reflector: its objects are the API's once it is in step again, whatever failed."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery.kubernetes.api_objects import (
    ApiStatus,
    ListMetadata,
    ObjectMetadata,
    Page,
    Pod,
    WatchEvent,
)
from gateway.discovery.kubernetes.reflector import ApiFailure, ListPage, OpenWatch, Pause, Reflector

NAMES = ("a", "b", "c", "d")


@dataclass
class ModelApi:
    """API server, plainly: objects, and a log of events of which the oldest are compacted."""

    pods: dict[str, Pod] = field(default_factory=dict)
    log: list[WatchEvent[Pod]] = field(default_factory=list)
    version: int = 1
    oldest: int = 0

    def put(self, name: str) -> None:
        self.version += 1
        found = self.pods[name] = Pod(ObjectMetadata(name, f"uid-{self.version}", str(self.version)))
        self.log.append(WatchEvent(str(self.version), object=found))

    def remove(self, name: str) -> None:
        if pod := self.pods.pop(name, None):
            self.version += 1
            gone = ObjectMetadata(name, pod.metadata.uid, str(self.version))
            self.log.append(WatchEvent(str(self.version), deleted=gone))

    def since(self, version: str) -> list[WatchEvent[Pod]]:
        """Events after a version; an error where that is compacted."""
        if int(version) < self.oldest:
            return [WatchEvent(error=ApiStatus("too old", "Expired", 410))]
        return [event for event in self.log if int(event.version) > int(version)]


STEP = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("compact"), st.just("")),
    st.tuples(st.just("deliver"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.sampled_from([0, 401, 403, 404, 410, 429, 500])),
)
RESTORE = st.tuples(st.just("restore"), st.just(""))
"""The API server goes back to its last backup."""


def deliver(made: Reflector[Pod], api: ModelApi, most: int, now: float) -> bool:
    """Do as the reflector asks, up to so many events. Returns True if it was a watch that got all of them."""
    command = made.next(now)
    while isinstance(command, Pause):
        command = made.next(now)
    if isinstance(command, ListPage):
        made.page(now, Page(ListMetadata(str(api.version)), list(api.pods.values())))
        return False
    assert isinstance(command, OpenWatch)
    made.opened(now)
    events = api.since(command.version)
    for event in events[:most]:
        made.event(now, event)
        if event.error:
            return False
    made.closed(now)
    return len(events) <= most


def run(steps: list[tuple[str, object]], made: Reflector[Pod]) -> tuple[ModelApi, float]:
    """Do all steps, one a second. Returns the API server and the time after them."""
    api, backup, now = ModelApi(), ModelApi(), 0.0
    for kind, value in steps:
        now += 1.0
        match kind:
            case "put":
                api.put(str(value))
            case "remove":
                api.remove(str(value))
            case "compact":
                api.oldest, backup = api.version, ModelApi(dict(api.pods), [], api.version, api.version)
            case "deliver":
                deliver(made, api, int(str(value)), now)
            case "fail":
                made.next(now)
                made.failed(now, ApiFailure("x", int(str(value))))
            case "restore":
                api = ModelApi(dict(backup.pods), [], backup.version, backup.oldest)
    return api, now


def is_a_copy(made: Reflector[Pod], api: ModelApi, now: float) -> bool:
    """Return True if the objects are the API's after a few undisturbed deliveries."""
    assert any([deliver(made, api, 1000, now) for _ in range(5)])
    return made.objects == api.pods


@given(st.lists(STEP, min_size=6, max_size=40))
def test_a_copy_ends_as_the_original(steps: list[tuple[str, object]]) -> None:
    made = Reflector[Pod](random.Random(1), relist_s=600.0)
    api, now = run(steps, made)
    assert is_a_copy(made, api, now)


@given(st.lists(STEP | RESTORE, max_size=40))
def test_a_list_that_is_due_finds_what_the_version_of_a_backup_hides(steps: list[tuple[str, object]]) -> None:
    made = Reflector[Pod](random.Random(1), relist_s=600.0)
    api, now = run(steps, made)
    assert is_a_copy(made, api, now + 601.0)
