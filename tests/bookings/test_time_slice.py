"""Decisions that wait for a time slice, and those that do not."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.bookings.shared_ledger import LOCK_TOKENS
from gateway.bookings.time_slice import TimeSlice
from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.errors import GatewayError
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.tenancy.admission.tenants import Ticket

REQUEST = InferenceRequest(RouteKind.COMPLETION, "/v1/completions", b"", {"model": "m"})
LONG = Prompt((tokens_of([1] * LOCK_TOKENS),))


class Waiting:
    """Request that waits; raises `bug` when it is routed."""

    ticket: Ticket | None = None

    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug
        self.events: list[Any] = []

    def route_or_fail(self, prompt: Prompt | None) -> None:
        if self.bug:
            raise self.bug
        self.events.append(prompt)

    def fail(self, error: GatewayError) -> None:
        self.events.append(error.code)


@pytest.fixture
def turns() -> list[Callable[[], None]]:
    return []


def test_a_short_prompt_is_decided_at_once(turns: list[Callable[[], None]]) -> None:
    waiting, short = Waiting(), Prompt((tokens_of([1]),))
    assert TimeSlice(turns.append, lambda request: short).decide(waiting, REQUEST, None)
    assert (waiting.events, turns) == ([short], [])


def test_a_long_prompt_waits_for_its_slice(turns: list[Callable[[], None]]) -> None:
    waiting, time_slice = Waiting(), TimeSlice(turns.append, lambda request: Prompt())
    assert not time_slice.decide(waiting, REQUEST, LONG, lambda: waiting.events.append("decided"))
    assert waiting.events == []
    turns[0]()
    assert waiting.events == [LONG, "decided"]


def test_a_bug_in_a_slice_is_answered_and_the_queue_continues(
    turns: list[Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    waiting, time_slice = Waiting(ZeroDivisionError()), TimeSlice(turns.append, lambda request: Prompt())
    time_slice.decide(waiting, REQUEST, LONG, lambda: waiting.events.append("decided"))
    turns[0]()
    assert waiting.events == ["internal_error", "decided"]
    assert "raised; its client gets 500" in caplog.text
