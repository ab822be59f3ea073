import logging

import pytest

from gateway import request
from gateway.core.decision import Decided, Decision, Prompt
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage
from gateway.observability.observers import Observers
from tests.policies.contract import candidate

ASKED = request("/v1/completions", {"model": "m", "prompt": [1]})
DECISION = Decision("id", "m", "p", candidate("a").worker, 1, 0, "", ())


class Seen:
    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.seen: list[str] = []

    def decided(self, *args: object) -> None:
        self._see("decided")

    def answered(self, *args: object) -> None:
        self._see("answered")

    def finished(self, *args: object) -> None:
        self._see("finished")

    def _see(self, event: str) -> None:
        if self.is_broken:
            raise RuntimeError("a bug")
        self.seen.append(event)


def observers_of(*seen: Seen) -> Observers:
    observers = Observers()
    for each in seen:
        observers.decided.append(each.decided)
        observers.answered.append(each.answered)
        observers.finished.append(each.finished)
    return observers


def notify_all(observers: Observers) -> None:
    observers.notify_decided(Decided(DECISION, Prompt(), (), ASKED))
    observers.notify_answered(DECISION, (), Usage(1))
    observers.notify_finished(DECISION, Outcome("ended", 200, None, None))


def test_all_observers_see_decisions_answers_and_ends() -> None:
    first, other = Seen(), Seen()
    notify_all(observers_of(first, other))
    assert first.seen == other.seen == ["decided", "answered", "finished"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_observer_that_raises_is_disabled_and_the_others_see_all(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    good = [Seen(), Seen()]
    observers = observers_of(*good[:place], Seen(is_broken=True), *good[place:])
    with caplog.at_level(logging.ERROR):
        notify_all(observers)
        notify_all(observers)
    assert repr(observers) == "Observers(2, 2, 2)"
    assert [each.seen for each in good] == [["decided", "answered", "finished"] * 2] * 2
    assert len(caplog.records) == 3
