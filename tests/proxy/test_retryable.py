"""Who has done nothing for a request, so that another worker may."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.core.decision import Decision, Query
from gateway.core.outcome import UNLOADED
from gateway.proxy.retryable import refusal_of


@dataclass
class Decided:
    query: Query | None


def decided(adapter: str | None) -> Decision:
    return cast(Decision, Decided(Query("m", 1, adapter=adapter)))


@pytest.mark.parametrize(
    ("status", "decision", "failed", "told"),
    [
        (503, decided(None), [], "answered 503"),
        (503, None, [], "answered 503"),
        (404, decided("lora"), [], UNLOADED),
        (404, decided("lora"), ["cannot connect"], UNLOADED),
        (404, decided("lora"), [UNLOADED], None),  # a second one that says so is believed
        (404, decided(None), [], None),
        (404, cast(Decision, Decided(None)), [], None),
        (404, None, [], None),
        (400, decided("lora"), [], None),
        (500, decided("lora"), [], None),
    ],
)
def test_refusals(status: int, decision: Decision | None, failed: list[str], told: Any) -> None:
    assert refusal_of(status, decision, failed) == told
