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

    def decided(self, *told: object) -> None:
        self._see("decided")

    def answered(self, *told: object) -> None:
        self._see("answered")

    def finished(self, *told: object) -> None:
        self._see("finished")

    def _see(self, what: str) -> None:
        if self.is_broken:
            raise RuntimeError("a bug")
        self.seen.append(what)


def told_to(*seen: Seen) -> Observers:
    observers = Observers()
    for each in seen:
        observers.decided.append(each.decided)
        observers.answered.append(each.answered)
        observers.finished.append(each.finished)
    return observers


def tell_all(observers: Observers) -> None:
    observers.notify_decided(Decided(DECISION, Prompt(), (), ASKED))
    observers.notify_answered(DECISION, (), Usage(1))
    observers.notify_finished(DECISION, Outcome("ended", 200, None, None))


def test_all_see_what_was_decided_answered_and_finished() -> None:
    one, other = Seen(), Seen()
    tell_all(told_to(one, other))
    assert one.seen == other.seen == ["decided", "answered", "finished"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_fails_is_told_no_more_and_the_others_see_all(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    good = [Seen(), Seen()]
    observers = told_to(*good[:place], Seen(is_broken=True), *good[place:])
    with caplog.at_level(logging.ERROR):
        tell_all(observers)
        tell_all(observers)
    assert repr(observers) == "Observers(2, 2, 2)"
    assert [each.seen for each in good] == [["decided", "answered", "finished"] * 2] * 2
    assert len(caplog.records) == 3
