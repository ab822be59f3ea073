"""Prefill leg by itself; test_legs.py has it with its request."""

import asyncio
import errno
import gc
import weakref
from typing import Any, cast

import pytest

from gateway.disaggregation.prefill_leg import MAX_ANSWER_BYTES, PrefillFailure, PrefillLeg
from gateway.http.messages import OutgoingHead
from gateway.upstream.connection import UpstreamConnection
from tests.support.transports import FakeLoop
from tests.support.worlds.exchanges import FakePool, InlineTasks


class PrefillLegWorld:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> None:
        self.loop = FakeLoop.install(monkeypatch)
        self.pool = FakePool("http://p:1")
        self.pool.error = error
        self.ends: list[Any] = []
        self.leg = PrefillLeg(
            self.pool,
            OutgoingHead("POST", b"/", []),
            b"{}",
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            start=cast(Any, InlineTasks().start),
            timeout_s=5.0,
            on_prefilled=self.ends.append,
            on_failed=lambda *why: self.ends.append(why),
        )
        self.leg.begin()


def test_a_whole_answer_is_handed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PrefillLegWorld(monkeypatch)
    transport = world.pool.transports[0]
    assert transport.out.endswith(b"\r\n\r\n{}")
    transport.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd")
    world.loop.advance(10.0)
    world.leg.fail(PrefillFailure.DIED, "later")
    assert world.ends == [b"abcd"]
    assert "over=True" in repr(world.leg)


def test_a_prefill_leg_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PrefillLegWorld(monkeypatch)
    world.pool.transports[0].feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    world.loop.advance(5.0)
    assert world.ends == [(PrefillFailure.TIMEOUT, "no answer in 5 s")]
    assert world.pool.transports[0].end == "aborted"


def test_a_cancelled_leg_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PrefillLegWorld(monkeypatch)
    world.leg.cancel()
    assert world.pool.transports[0].end == "aborted"
    world.loop.advance(10.0)
    assert world.ends == []


async def test_a_leg_cancelled_while_it_connects_is_freed_without_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, world = asyncio.get_running_loop(), PrefillLegWorld(monkeypatch)

    async def wait() -> UpstreamConnection:
        await asyncio.Event().wait()
        raise AssertionError("cancelled before")

    world.pool.transports.clear()
    monkeypatch.setattr(world.pool, "connect", wait)
    monkeypatch.setattr(world.leg, "_start", lambda name, coro: real.create_task(coro))
    world.leg.begin()
    await asyncio.sleep(0)  # the task begins
    world.leg.cancel()
    await asyncio.sleep(0)  # it is cancelled
    await asyncio.sleep(0)
    world.loop.timers.clear()
    freed = weakref.ref(world.leg)
    gc.disable()
    try:
        del world.leg
        monkeypatch.undo()
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (TimeoutError(), PrefillFailure.UNREACHABLE),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), PrefillFailure.UNREACHABLE),
        (OSError(errno.EMFILE, "too many open files"), PrefillFailure.REFUSED),
    ],
)
def test_a_connection_error_has_its_failure(
    monkeypatch: pytest.MonkeyPatch, error: OSError, failure: PrefillFailure
) -> None:
    ((why, _),) = PrefillLegWorld(monkeypatch, error).ends
    assert why is failure


@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, PrefillFailure.REFUSED), (404, PrefillFailure.REFUSED), (503, PrefillFailure.ERROR)],
)
def test_a_rejected_request_is_no_fault_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, status: int, failure: PrefillFailure
) -> None:
    world = PrefillLegWorld(monkeypatch)
    world.pool.transports[0].feed(b"HTTP/1.1 %d X\r\nContent-Length: 3\r\n\r\nwhy" % status)
    assert world.ends == [(failure, f"answered {status}: why")]


@pytest.mark.parametrize(
    ("status", "after", "body", "busy_s"),
    [
        (503, b"", b"The request queue is full.", 1.0),
        (503, b"Retry-After: 4\r\n", b"", 4.0),
        (429, b"", b"", 1.0),
        (529, b"Retry-After: 2.5\r\n", b"", 2.5),
        (500, b"", b'{"error":{"type":"overloaded_error"}}', 1.0),
    ],
)
def test_a_saturated_prefill_worker_is_busy(
    monkeypatch: pytest.MonkeyPatch, status: int, after: bytes, body: bytes, busy_s: float
) -> None:
    world = PrefillLegWorld(monkeypatch)
    head = b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n" % (status, after, len(body))
    world.pool.transports[0].feed(head + body)
    assert [failure for failure, _ in world.ends] == [PrefillFailure.BUSY]
    assert world.leg.busy_s == busy_s


def test_a_prefill_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PrefillLegWorld(monkeypatch)
    size = MAX_ANSWER_BYTES + 1
    world.pool.transports[0].feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size)
    assert world.ends == [(PrefillFailure.ERROR, f"its answer is over {MAX_ANSWER_BYTES} bytes")]
