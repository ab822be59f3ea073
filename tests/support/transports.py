"""A loop and a transport without time or sockets: tests feed protocols by hand and move the clock."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest


class FakeTimer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when, self.callback = when, callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Close and drop the data, as the real one."""
        self.is_cancelled = True
        self.callback = lambda: None


class FakeLoop:
    """`advance` moves the clock and fires what comes due on the way."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> "FakeLoop":
        loop = cls()
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        return loop

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object]) -> FakeTimer:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(self.now + delay, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if not t.is_cancelled and t.when <= end]:
            timer = min(due, key=lambda t: t.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = end


class FakeTransport:
    """Transport that keeps its writes, and its end: "", "closed", "eof" or "aborted"."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        self.out = b""
        self.end = ""
        self.is_reading = True
        self.num_unsent = 0
        protocol.connection_made(cast(asyncio.Transport, self))

    def write(self, data: bytes) -> None:
        assert self.end == "", f"write on a transport that is {self.end}"
        self.out += data

    def feed(self, *parts: bytes) -> None:
        for part in parts:
            if self.end in ("", "eof"):
                self.protocol.data_received(part)

    def lose(self, exc: Exception | None = None) -> None:
        self.end = self.end or "closed"
        self.protocol.connection_lost(exc)

    def taken(self) -> bytes:
        """Data written since the last call."""
        out, self.out = self.out, b""
        return out

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

    def is_closing(self) -> bool:
        return self.end in ("closed", "aborted")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.end = "eof"

    def close(self) -> None:
        self.end = self.end if self.end == "aborted" else "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
