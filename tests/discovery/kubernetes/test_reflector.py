"""The reflector as transcripts: pages, events and failures in, commands out, by a clock of the test."""

import random
from typing import Any

import pytest

from gateway.discovery.kubernetes import reflector as module
from gateway.discovery.kubernetes.api_objects import (
    ApiStatus,
    ListMetadata,
    ObjectMetadata,
    Page,
    Pod,
    WatchEvent,
)
from gateway.discovery.kubernetes.reflector import (
    ABSENT_PAUSE_S,
    LAST_PAUSE_S,
    STEADY_S,
    ApiFailure,
    ListPage,
    ObjectChange,
    OpenWatch,
    Pause,
    Reflector,
    SyncPhase,
)


def a_pod(name: str, version: str = "1", uid: str = "") -> Pod:
    return Pod(ObjectMetadata(name, uid or f"uid-{name}", version))


def page(*names: str, version: str = "10", more: str | None = None) -> Page[Pod]:
    return Page(ListMetadata(version, more), [a_pod(name) for name in names])


def listed(*names: str, now: float = 0.0) -> Reflector[Pod]:
    made = Reflector[Pod](random.Random(1), relist_s=600.0)
    assert made.next(now) == ListPage("")
    assert made.page(now, page(*names))
    return made


def changed(version: str, name: str, uid: str = "") -> WatchEvent[Pod]:
    return WatchEvent(version, object=a_pod(name, version, uid))


def test_pages_become_one_list_which_counts_when_it_is_complete() -> None:
    made = Reflector[Pod](random.Random(1))
    assert made.next(0.0) == ListPage("")
    assert not made.page(0.0, page("a", more="t"))
    assert (made.next(0.0), made.objects, made.synced_at) == (ListPage("t"), {}, None)
    assert made.page(1.0, page("b"))
    assert (sorted(made.objects), made.synced_at) == (["a", "b"], 1.0)
    assert made.next(1.0) == OpenWatch("10", 600.0)


def test_events_change_objects_and_move_the_version() -> None:
    made = listed("a")
    made.opened(1.0)
    change = made.event(2.0, changed("11", "b"))
    assert change and (change.name, change.object and change.object.metadata.uid) == ("b", "uid-b")
    assert made.event(3.0, WatchEvent("12", deleted=ObjectMetadata("a", "uid-a", "12"))) == ObjectChange(
        "a", None
    )
    assert made.event(4.0, WatchEvent("20")) is None
    assert (sorted(made.objects), made.version, made.synced_at) == (["b"], "20", 4.0)
    made.closed(5.0)
    assert isinstance(made.next(5.0), Pause) and made.next(5.0) == OpenWatch("20", 595.0)


def test_a_deletion_of_another_pod_of_that_name_is_none() -> None:
    made = listed("a")
    made.event(0.0, changed("11", "a", "second"))
    assert made.event(0.0, WatchEvent("12", deleted=ObjectMetadata("a", "uid-a", "12"))) is None
    assert made.objects["a"].metadata.uid == "second"
    assert made.event(0.0, WatchEvent("13", deleted=ObjectMetadata("x", "u", "13"))) is None


@pytest.mark.parametrize("as_event", [True, False])
def test_410_lists_again_at_once_and_then_with_pauses(as_event: bool) -> None:
    made = listed("a", "b")

    def expire() -> None:
        if as_event:
            assert made.event(1.0, WatchEvent(error=ApiStatus("too old", "Expired", 410))) is None
        else:
            made.failed(1.0, ApiFailure("410 too old", 410))

    expire()
    assert made.next(1.0) == ListPage("")
    assert sorted(made.objects) == ["a", "b"]  # until the list is complete
    assert made.page(1.0, page("b")) and sorted(made.objects) == ["b"]
    expire()
    assert isinstance(made.next(1.0), Pause) and made.next(1.0) == ListPage("")
    assert made.relists == {"expired": 2}
    made.page(1.0, page("b"))
    made.event(1.0, changed("11", "b"))
    expire()
    assert made.next(1.0) == ListPage("")  # an event between: no series


@pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503, 504])
def test_a_failed_watch_is_opened_again_at_its_version(status: int) -> None:
    made = listed("a")
    made.failed(1.0, ApiFailure("x", status))
    assert isinstance(made.next(1.0), Pause) and made.next(1.0) == OpenWatch("10", 599.0)
    assert (sorted(made.objects), made.num_failures, made.last_reason) == (["a"], 1, "x")


def test_pauses_grow_to_their_bound_and_end_with_an_event_or_a_steady_watch() -> None:
    made = listed("a")

    def pause_s(now: float) -> float:
        made.failed(now, ApiFailure("x", 500))
        pause = made.next(now)
        assert isinstance(pause, Pause)
        return pause.seconds

    pauses = [pause_s(0.0) for _ in range(20)]
    assert pauses[0] <= 0.25 < pauses[5] < pauses[9] <= LAST_PAUSE_S and min(pauses[10:]) >= LAST_PAUSE_S / 2
    made.event(0.0, changed("11", "a"))
    assert pause_s(0.0) <= 0.25
    pause_s(0.0)
    made.opened(1.0)
    assert pause_s(1.0 + STEADY_S) <= 0.25
    made.opened(1.0)
    assert pause_s(1.1) > 0.2


@pytest.mark.parametrize(("asked_s", "least_s"), [(7.0, 7.0), (1e9, LAST_PAUSE_S)])
def test_a_server_may_ask_for_a_pause(asked_s: float, least_s: float) -> None:
    made = listed("a")
    made.failed(0.0, ApiFailure("429", 429, retry_after_s=asked_s))
    assert made.next(0.0) == Pause(least_s)


def test_an_absent_kind_keeps_its_objects_and_is_asked_for_slowly() -> None:
    made = listed("a")
    made.failed(0.0, ApiFailure("404", 404))
    assert (made.next(0.0), made.next(0.0)) == (Pause(ABSENT_PAUSE_S), ListPage(""))
    assert (sorted(made.objects), made.relists) == (["a"], {"absent": 1})


def test_unreadable_lines_lead_to_a_list() -> None:
    made = listed("a")
    made.failed(0.0, ApiFailure("unreadable", is_unreadable=True))
    assert isinstance(made.next(0.0), Pause) and made.next(0.0) == ListPage("")
    assert made.relists == {"unreadable": 1}


@pytest.mark.parametrize("status", [400, 410, 500])
def test_a_list_that_fails_within_its_pages_starts_over(status: int) -> None:
    made = Reflector[Pod](random.Random(1))
    made.page(0.0, page("a", more="t"))
    made.failed(0.0, ApiFailure("continue", status))
    assert isinstance(made.next(0.0), Pause) and made.next(0.0) == ListPage("")
    assert made.page(0.0, page("b")) and sorted(made.objects) == ["b"]
    assert made.relists == {}


def test_a_list_comes_after_its_interval_and_follows_a_version_that_went_back() -> None:
    made = listed("a", "b")
    assert made.next(600.0) == ListPage("")
    assert made.page(600.0, page("b", version="3"))
    assert (sorted(made.objects), made.next(600.0)) == (["b"], OpenWatch("3", 600.0))
    assert made.relists == {"interval": 1}


def test_an_api_server_that_is_away_for_ten_minutes_changes_nothing() -> None:
    made, now, num = listed("a", "b", now=100.0), 100.0, 0
    while now < 690.0:
        match made.next(now):
            case Pause(seconds):
                now += seconds
            case OpenWatch():
                num += 1
                made.failed(now, ApiFailure("cannot connect"))
    assert (sorted(made.objects), made.relists) == (["a", "b"], {})
    assert 20 <= num <= 50  # with growing pauses, and never more than half a minute apart
    while isinstance(command := made.next(now), Pause):
        now += command.seconds
    assert isinstance(command, OpenWatch) and now <= 690.0 + LAST_PAUSE_S
    made.opened(now)
    assert made.event(now, changed("11", "c")) and made.synced_at == now


def test_a_true_empty_list_empties() -> None:
    made = listed("a")
    made.next(600.0)
    assert made.page(600.0, page()) and made.objects == {}


def test_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OBJECTS", 2)
    made = listed("a", "b")
    assert made.event(0.0, changed("11", "c")) is None
    assert (sorted(made.objects), made.phase, made.last_reason) == (
        ["a", "b"],
        SyncPhase.WATCHING,
        "more than 2 objects; select fewer",
    )
    assert made.event(0.0, changed("12", "a")) is not None
    full: Any = Reflector[Pod](random.Random(1))
    assert not full.page(0.0, page("a", "b", "c"))
    assert (full.objects, full.num_failures) == ({}, 1)


def test_a_list_without_end_pauses_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that bring nothing new would be asked for without a pause."""
    monkeypatch.setattr(module, "MAX_PAGES", 3)
    made: Any = Reflector[Pod](random.Random(1))
    for _ in range(3):
        assert isinstance(made.next(0.0), ListPage)
        assert not made.page(0.0, page("a", more="t"))
    assert isinstance(made.next(0.0), Pause) and made.last_reason == "a list of more than 3 pages"
    assert made.next(0.0) == ListPage("")
    assert made.page(0.0, page("a")) and made.phase is SyncPhase.WATCHING
