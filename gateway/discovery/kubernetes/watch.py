"""Watch of one kind of object: the reflector with its connection.

A failure is logged once, and again where its reason changes; the objects stay as they are meanwhile.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

import msgspec

from gateway.discovery.kubernetes.api_objects import Codec, T
from gateway.discovery.kubernetes.client import ApiClient, ApiQuery, ApiRequestFailed, WatchSilent
from gateway.discovery.kubernetes.reflector import (
    ApiFailure,
    ListPage,
    ObjectChange,
    OpenWatch,
    Pause,
    Reflector,
)
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.kubernetes")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
NOT_SERVED = (403, 404)
"""Statuses of a kind that is not there: without rights for it the API does not say which of the two."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    relist_s: float = 600.0
    silence_s: float = 75.0


class ObjectWatch(Generic[T]):
    """Copy of the API's objects of one kind. `on_list` gets all objects after each complete list, `on_change`
    one that changed; `name` and `unchanged`, what stays as it is while the API fails, are for the log.
    `older` is asked at each list where `query` is not served: the same kind in an older group."""

    def __init__(
        self,
        name: str,
        client: ApiClient,
        query: ApiQuery,
        codec: Codec[T],
        *,
        on_list: Callable[[Mapping[str, T]], None],
        on_change: Callable[[ObjectChange[T]], None],
        times: WatchTimes,
        older: ApiQuery | None = None,
        unchanged: str = "its workers",
    ) -> None:
        self.name = name
        self._unchanged = unchanged
        self._client = client
        self._queries = [query] if older is None else [query, older]
        self._query = query
        self._codec = codec
        self._on_list = on_list
        self._on_change = on_change
        self._times = times
        self._log = RateLimitedLog(log)
        self.reflector = Reflector[T](random.Random(), times.relist_s)
        self.last_error: str | None = None

    def __repr__(self) -> str:
        return f"ObjectWatch({self._query.path}, {self.reflector.phase.value})"

    async def run(self) -> None:
        while True:
            match self.reflector.next(time.monotonic()):
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case ListPage(token):
                    await self._list(token)
                case OpenWatch(version, timeout_s):
                    await self._watch(version, timeout_s)

    async def _list(self, token: str) -> None:
        try:
            page = self._codec.page(await self._page(token))
        except ApiRequestFailed as exc:
            return self._failed(exc.failure)
        except UNREADABLE as exc:
            return self._failed(ApiFailure(f"unreadable list: {exc}", is_unreadable=True))
        num_failures = self.reflector.num_failures
        if self.reflector.page(time.monotonic(), page):
            self._recovered()
            self._on_list(self.reflector.objects)
        elif self.reflector.num_failures != num_failures:
            self._note()
        return None

    async def _page(self, token: str) -> bytes:
        """A page; the first one decides which query is used until the next list."""
        if not token:
            *first, self._query = self._queries
            for query in first:
                try:
                    page = await self._client.page(query, "")
                except ApiRequestFailed as exc:
                    if exc.failure.status not in NOT_SERVED:
                        raise
                else:
                    self._query = query
                    return page
        return await self._client.page(self._query, token)

    async def _watch(self, version: str, timeout_s: float) -> None:
        times = self._times
        try:
            async with self._client.watch(self._query, version, timeout_s, times.silence_s) as lines:
                self.reflector.opened(time.monotonic())
                self._recovered()
                async for line in lines:
                    if not self._take(line):
                        return None
        except WatchSilent:
            log.debug("Kubernetes %s: no line for %g s, watching again", self.name, times.silence_s)
        except ApiRequestFailed as exc:
            return self._failed(exc.failure)
        return self.reflector.closed(time.monotonic())

    def _take(self, line: bytes) -> bool:
        """Take a line. Returns False if the watch has ended with it."""
        num_failures = self.reflector.num_failures
        try:
            event = self._codec.event(line)
        except UNREADABLE as exc:
            self._failed(ApiFailure(f"unreadable event: {exc}", is_unreadable=True))
            return False
        if change := self.reflector.event(time.monotonic(), event):
            self._on_change(change)
        if self.reflector.num_failures == num_failures:
            return True
        self._note()
        return False

    def _failed(self, failure: ApiFailure) -> None:
        self.reflector.failed(time.monotonic(), failure)
        self._note()

    def _note(self) -> None:
        reason = self.reflector.last_reason
        if self.last_error != reason:
            what = f"{self.name}: {reason}"  # a rate-limited kind of its own
            self._log.warning("Kubernetes %s; %s stay unchanged", what, self._unchanged)
        self.last_error = reason

    def _recovered(self) -> None:
        if self.last_error is not None:
            self._log.info("Kubernetes %s: watch recovered", self.name)
        self.last_error = None
