"""What is said of a server that does not do what it is asked: once, and when it is over."""

import logging

import pytest
from redis.exceptions import AuthenticationError, OutOfMemoryError, ReadOnlyError, ResponseError

from gateway.redis.error_reporter import Trouble, Unusable


def failed(trouble: Trouble, exc: Exception, *names: str) -> None:
    for name in names:
        trouble.tell(name, exc)


@pytest.mark.parametrize(
    ("exc", "told"),
    [
        (OutOfMemoryError("OOM used memory"), "OOM used memory; it has no memory left: raise its maxmemory"),
        (ReadOnlyError("READONLY"), "READONLY; it is a replica: name its master"),
        (AuthenticationError("WRONGPASS"), "WRONGPASS; it refuses the password or user: see"),
        (ResponseError("BUSY"), "is done without: BUSY"),
        (TimeoutError(), "is done without: TimeoutError"),
    ],
)
def test_it_is_said_once_and_when_it_is_over(
    exc: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble("redis://a:1", lambda: False)
    failed(trouble, exc, "w:1")
    assert not trouble and not caplog.records
    failed(trouble, exc, "w:1", "w:1", "w:2", "w:2")
    assert trouble and [record.levelname for record in caplog.records] == ["WARNING"]
    assert "redis at redis://a:1 does not do" in caplog.text and told in caplog.text
    trouble.over("w:1")
    assert trouble
    trouble.over("w:2")
    assert not trouble and "redis at redis://a:1 does what it is asked again" in caplog.text


def test_one_failure_is_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("redis://a:1", lambda: False)
    for _ in range(5):
        failed(trouble, ResponseError("BUSY"), "w:1")
        trouble.over("w:1")
    assert not trouble and not caplog.records


def test_what_is_said_elsewhere_is_not_said_here(caplog: pytest.LogCaptureFixture) -> None:
    failed(refused := Trouble("a", lambda: False), Unusable("another schema"), *["w:1"] * 5)
    failed(lost := Trouble("a", lambda: True), ConnectionError("refused"), *["w:1"] * 5)
    assert not caplog.records and not refused and not lost
