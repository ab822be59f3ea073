"""Answers that let another worker try: a table."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.core.decision import Decision, Query
from gateway.core.outcome import UNLOADED
from gateway.proxy.retryable import unloaded


@dataclass
class Decided:
    query: Query | None


def decided(adapter: str | None) -> Decision:
    return cast(Decision, Decided(Query("m", 1, adapter=adapter)))


@pytest.mark.parametrize(
    ("status", "decision", "failed", "expected"),
    [
        (404, decided("lora"), [], UNLOADED),
        (404, decided("lora"), ["cannot connect"], UNLOADED),
        (404, decided("lora"), [UNLOADED], None),  # the second worker with this answer is believed
        (404, decided(None), [], None),
        (404, cast(Decision, Decided(None)), [], None),
        (404, None, [], None),
        (400, decided("lora"), [], None),
        (500, decided("lora"), [], None),
    ],
)
def test_an_unloaded_adapter_lets_another_worker_try(
    status: int, decision: Decision | None, failed: list[str], expected: Any
) -> None:
    assert unloaded(status, decision, failed) == expected
