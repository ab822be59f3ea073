"""Polling of KV events over HTTP, for TensorRT-LLM where it publishes none.

Each answer has the events since the last one; no other client may poll, or each gets a part of them (which
event numbers show). An answer that is lost on its way is a gap.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import aiohttp

from gateway.ingest.pauses import Backoff
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.runtime.tasks import Tasks
from gateway.upstream.control_client import ControlSession, failure

POLL_S = 0.2
"""Time between two polls, by which the index is late (instead of milliseconds). Older engines wait up to 2 s
themselves while there are no events."""
RETRY_S = 2.0
MAX_ANSWER_BYTES = 16 << 20
"""Largest answer: 400,000 tokens as JSON, minutes of a busy engine."""

log = logging.getLogger("kvgate.ingest")


class PollFeed:
    """Feeds one subscription from a worker's own HTTP address. `path` is its `EnginePaths.poll`."""

    replay_endpoint: str | None = None

    def __init__(
        self,
        subscription: Subscription,
        *,
        session: ControlSession,
        url: str,
        path: str,
        block_size: int,
        headers: Mapping[str, str],
        tasks: Tasks,
        time_slices: TimeSlices | None = None,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._subscription = subscription
        self._session = session
        self._url, self._path = url, path
        self._block_size = block_size
        self._headers = headers
        self._tasks = tasks
        self._time_slices = time_slices or TimeSlices()
        self._poll_s, self._retry_s = poll_s, retry_s
        self._clock = clock
        self.endpoint = url + path
        self.is_connected = False
        self._pauses = Backoff()
        self._paused_until = 0.0
        self._is_logged = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PollFeed({self.endpoint}, connected={self.is_connected}, {self._subscription})"

    def start(self) -> None:
        self._subscription.behind = lambda: self._time_slices.add(self._continue)
        self._subscription.on_cut = self._pause
        self._task = self._tasks.start(f"poll {self.endpoint}", self._run())

    def stop(self) -> None:
        if self._task:
            self._task.cancel()
        self._subscription.close()

    def _pause(self) -> float:
        """Pause polling. Events wait in the engine (its buffer drops the oldest): the next answer shows the
        gap."""
        now = asyncio.get_running_loop().time()
        pause_s = self._pauses.next(now)
        self._paused_until, self.is_connected = now + pause_s, False
        return pause_s

    async def _wait(self) -> None:
        """Wait until the last answer is applied and a pause is over."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._poll_s)
        while self._subscription.is_behind:  # noqa: ASYNC110 - milliseconds, in turn with other feeds
            await asyncio.sleep(self._poll_s)
        await asyncio.sleep(self._paused_until - loop.time())

    def _continue(self) -> None:
        if self._subscription.continue_work():
            self._time_slices.add(self._continue)

    async def _run(self) -> None:
        while True:
            try:
                body = await self._ask()
            except (TimeoutError, aiohttp.ClientError, OSError) as exc:
                self._failed(failure(exc))
                await asyncio.sleep(self._retry_s)
                continue
            if not self.is_connected:
                self.is_connected, self._is_logged = True, False
                self._subscription.connected()
            self._subscription.polled(body, self._block_size, self._clock())
            await self._wait()

    async def _ask(self) -> bytes:
        async with self._session.call("POST", self._url, self._path, headers=self._headers) as answer:
            if answer.status != 200:
                raise aiohttp.ClientError(f"answered {answer.status}")
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientError(f"the answer is over {MAX_ANSWER_BYTES} bytes")
            return bytes(body)

    def _failed(self, reason: str) -> None:
        """Log a failed poll once. Events wait in the engine's buffer: no reset before a gap shows."""
        self.is_connected = False
        if not self._is_logged:
            self._is_logged = True
            worker = self._subscription.worker
            log.warning("worker %s: polling KV events at %s failed: %s", worker, self.endpoint, reason)
