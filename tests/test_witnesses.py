import logging

import pytest

from gateway import request
from gateway.core.decision import Decision, Prompt, Witness
from gateway.core.sse import Usage
from gateway.witnesses import tell_answered, tell_decided
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

    def _see(self, what: str) -> None:
        if self.is_broken:
            raise RuntimeError("a bug")
        self.seen.append(what)


def test_all_see_what_was_decided_and_answered() -> None:
    one, other = Seen(), Seen()
    witnesses: list[Witness] = [one, other]
    tell_decided(witnesses, DECISION, Prompt(), (), ASKED)
    tell_answered(witnesses, DECISION, (), Usage(1))
    assert one.seen == other.seen == ["decided", "answered"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_fails_is_dismissed_and_the_others_see_all(
    place: int, caplog: pytest.LogCaptureFixture
) -> None:
    good: list[Witness] = [Seen(), Seen()]
    witnesses = [*good[:place], Seen(is_broken=True), *good[place:]]
    with caplog.at_level(logging.ERROR):
        tell_decided(witnesses, DECISION, Prompt(), (), ASKED)
        tell_answered(witnesses, DECISION, (), Usage(1))
    assert witnesses == good
    assert [each.seen for each in good if isinstance(each, Seen)] == [["decided", "answered"]] * 2
    assert len(caplog.records) == 1
