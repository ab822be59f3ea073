"""The prefill leg of a disaggregated request: another worker computes the prompt, and reports where it lies.

    connect ─ send ─► its whole answer ─► `on_prefilled`
       └─ any failure, or the timeout ─► `on_failed`

One of the two is called, once; neither after `cancel`, which the worker sees as a disconnect: it stops
computing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Final

from gateway.http.headers import sent_again
from gateway.http.messages import OutgoingHead, ResponseHead
from gateway.http.refusal import is_refusal, refusal_of
from gateway.upstream.connection import OUR_ERRNOS, Pool, UpstreamConnection

MAX_ANSWER_BYTES: Final = 8 << 20
"""The answer names each block: a prompt of a million tokens has some 60,000 of them."""


class PrefillFailure(Enum):
    """Causes of a failed prefill leg. REFUSED: the worker rejects the request, or its answer cannot be used;
    it is not down. BUSY: it is saturated."""

    UNREACHABLE = "unreachable"
    DIED = "died"
    TIMEOUT = "timeout"
    ERROR = "error"
    REFUSED = "rejected"
    BUSY = "busy"


Start = Callable[[str, Coroutine[None, None, None]], "asyncio.Task[None]"]


class PrefillLeg:
    """A prefill leg, which sends `head` and `body`. `on_prefilled` gets the answer, `on_failed` the cause."""

    def __init__(
        self,
        pool: Pool,
        head: OutgoingHead,
        body: bytes,
        *,
        loop: asyncio.AbstractEventLoop,
        start: Start,
        timeout_s: float,
        on_prefilled: Callable[[bytes], None],
        on_failed: Callable[[PrefillFailure, str], None],
    ) -> None:
        self._pool = pool
        self._request_head = head
        self._body = body
        self._loop = loop
        self._start = start
        self._on_prefilled = on_prefilled
        self._on_failed = on_failed
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._upstream: UpstreamConnection | None = None
        self._answer = bytearray()
        self._head: ResponseHead | None = None
        self.busy_s = 0.0
        """The time for which a saturated worker gets no requests; set with BUSY."""
        self._is_fresh = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"PrefillLeg({self._pool!r}, over={self._is_over})"

    def begin(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s, self._too_late)
        connection = self._pool.take()
        if connection is None:
            self._task = self._start("connect for prefill", self._connect())
        else:
            self._send(connection)

    def cancel(self) -> None:
        self._end()

    def fail(self, failure: PrefillFailure, reason: str) -> None:
        """End the leg with this cause, unless it is over."""
        if not self._is_over:
            self._end()
            self._on_failed(failure, reason)

    async def _connect(self) -> None:
        self._is_fresh = True
        try:
            connection = await self._pool.connect()
        except TimeoutError:
            return self.fail(PrefillFailure.UNREACHABLE, "connection timed out")
        except OSError as exc:
            failure = PrefillFailure.REFUSED if exc.errno in OUR_ERRNOS else PrefillFailure.UNREACHABLE
            return self.fail(failure, f"cannot connect: {exc.strerror or exc}")
        if self._is_over:
            return connection.abort()
        return self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        connection.send(self._request_head, self._body, self)

    # the worker's answer -----------------------------------------------------------------------

    def upstream_head(self, head: ResponseHead) -> None:
        self._head = head

    def upstream_data(self, data: bytes) -> None:
        self._answer += data
        if len(self._answer) > MAX_ANSWER_BYTES:
            self.fail(PrefillFailure.ERROR, f"its answer is over {MAX_ANSWER_BYTES} bytes")

    def upstream_ended(self, data: bytes) -> None:
        self._upstream = None
        self.upstream_data(data)
        if self._is_over:
            return None
        assert self._head is not None, "an end follows its head"
        if self._head.status == 200:
            self._end()
            return self._on_prefilled(bytes(self._answer))
        text = bytes(self._answer[:200]).decode("utf-8", "replace")
        return self.fail(self._failure(self._head), f"answered {self._head.status}: {text}")

    def _failure(self, head: ResponseHead) -> PrefillFailure:
        if is_refusal(head.status):
            refusal = refusal_of(head, bytes(self._answer), time.time())
            if refusal.is_busy:
                self.busy_s = refusal.busy_s
                return PrefillFailure.BUSY
        return PrefillFailure.REFUSED if head.status < 500 else PrefillFailure.ERROR

    def upstream_lost(self, reason: str) -> None:
        self._upstream = None
        if self._is_fresh or self._head:
            return self.fail(PrefillFailure.DIED, reason)
        self._request_head = sent_again(self._request_head)  # the worker had closed a resting connection
        self._task = self._start("connect for prefill", self._connect())
        return None

    # the end -----------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self.fail(PrefillFailure.TIMEOUT, f"no answer in {self._timeout_s:g} s")

    def _end(self) -> None:
        self._is_over = True
        for pending in (self._timer, self._task):
            if pending:
                pending.cancel()
        self._timer = self._task = None  # a cancelled task keeps its frames, which refer to this leg
        if self._upstream:
            self._upstream.abort()
            self._upstream = None
