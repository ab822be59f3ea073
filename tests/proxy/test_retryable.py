"""Answers that let another worker try: a table."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.core.decision import Decision, Query
from gateway.core.outcome import UNLOADED
from gateway.http.messages import ResponseHead
from gateway.proxy.retryable import redirected, unloaded
from gateway.runtime.rate_limited_log import RateLimitedLog


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


def test_a_redirect_is_an_error_and_its_target_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("kvgate.proxy"))
    head = ResponseHead(307, [(b"location", b"http://10.0.0.9/v1")])
    error = redirected(head, None, log, "id-1")
    assert error is not None and error.status == 502
    assert error.message == "the worker answered 307, a redirect, which is not followed"
    assert "answered 307, a redirect to http://10.0.0.9/v1" in caplog.text and "id-1" in caplog.text
    assert redirected(ResponseHead(304, []), None, log, "") is None
    assert redirected(ResponseHead(404, []), None, log, "") is None
