"""Reports that reach another process of a gateway than their decision did: they go to all others, and the one
with the decision answers."""

import asyncio
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 0.5
"""Longest wait for the process with the decision; without an answer no process has it."""

MAX_WAITING: Final = 10_000


class ReportRelay:
    """Passes reports on by `send`, each under a number, and applies those of other processes once a decision
    service is attached."""

    def __init__(self, send: Callable[[int, bytes], None], loop: asyncio.AbstractEventLoop) -> None:
        self._send, self._loop = send, loop
        self._number = 0
        self._waiting: dict[int, tuple[Callable[[int | None], None], asyncio.TimerHandle]] = {}
        self._apply: Callable[[bytes], int | None] = lambda report: None

    def __repr__(self) -> str:
        return f"ReportRelay({len(self._waiting)} waiting)"

    def attach(self, apply: Callable[[bytes], int | None]) -> None:
        self._apply = apply

    def ask(self, report: bytes, answer: Callable[[int | None], None]) -> None:
        """Pass a report on; `answer` gets its result, or None if no process has the decision."""
        if len(self._waiting) >= MAX_WAITING:
            return answer(None)
        self._number += 1
        timer = self._loop.call_later(WAIT_S, self.answered, self._number, None)
        self._waiting[self._number] = answer, timer
        return self._send(self._number, report)

    def answered(self, number: int, result: int | None) -> None:
        """End the wait of the report with this number; a second answer changes nothing."""
        if waiting := self._waiting.pop(number, None):
            answer, timer = waiting
            timer.cancel()
            answer(result)

    def apply(self, report: bytes) -> int | None:
        """Apply another process's report; None if the decision is not of this one."""
        return self._apply(report)
