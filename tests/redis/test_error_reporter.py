"""Log of a failing server: one message when it fails, and one when it works again."""

import logging

import pytest
from redis.exceptions import AuthenticationError, OutOfMemoryError, ReadOnlyError, ResponseError

from gateway.redis.error_reporter import AlreadyReported, ErrorReporter


def failed(error_reporter: ErrorReporter, exc: Exception, *names: str) -> None:
    for name in names:
        error_reporter.report(name, exc)


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (OutOfMemoryError("OOM used memory"), "OOM used memory; it is out of memory: raise maxmemory"),
        (ReadOnlyError("READONLY"), "READONLY; it is a replica: configure its master"),
        (AuthenticationError("WRONGPASS"), "WRONGPASS; it rejects the password or user: see"),
        (ResponseError("BUSY"), "without it: BUSY"),
        (TimeoutError(), "without it: no answer in time"),
    ],
)
def test_a_failing_server_is_logged_once_and_again_when_it_works(
    exc: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    error_reporter = ErrorReporter("redis://a:1", lambda: False)
    failed(error_reporter, exc, "w:1")
    assert not error_reporter and not caplog.records
    failed(error_reporter, exc, "w:1", "w:1", "w:2", "w:2")
    assert error_reporter and [record.levelname for record in caplog.records] == ["WARNING"]
    assert "redis redis://a:1 failing" in caplog.text and reason in caplog.text
    error_reporter.recovered("w:1")
    assert error_reporter
    error_reporter.recovered("w:2")
    assert not error_reporter and "redis redis://a:1 works again" in caplog.text


def test_a_single_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    error_reporter = ErrorReporter("redis://a:1", lambda: False)
    for _ in range(5):
        failed(error_reporter, ResponseError("BUSY"), "w:1")
        error_reporter.recovered("w:1")
    assert not error_reporter and not caplog.records


def test_errors_reported_elsewhere_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    failed(refused := ErrorReporter("a", lambda: False), AlreadyReported("another schema"), *["w:1"] * 5)
    failed(lost := ErrorReporter("a", lambda: True), ConnectionError("refused"), *["w:1"] * 5)
    assert not caplog.records and not refused and not lost
