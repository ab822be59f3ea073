"""Synchronization of bookings: publishes this process's own, subscribes to other hosts' for the host."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from gateway.bookings.acl_check import advice, channel_of, refusals
from gateway.bookings.atomic_lock import DistributedLock
from gateway.bookings.message import SNAPSHOT_S, decode
from gateway.bookings.publisher import BookingsPublisher
from gateway.bookings.pubsub import PublishConnection, SubscribeConnection
from gateway.bookings.remote_hosts import RemoteHosts
from gateway.bookings.shared_memory import ProcessView
from gateway.bookings.unconfirmed import UnconfirmedBookings
from gateway.core.causes import cause_of
from gateway.core.worker import WorkerId
from gateway.observability.metrics import Histogram
from gateway.redis.client import LOST, UnusableRedis, check, failure, open_client
from gateway.redis.options import RedisOptions
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks
from gateway.runtime.terminal import print_lines
from gateway.runtime.work_slices import in_slices

log = logging.getLogger("kvgate.bookings")

RETRY_S = 0.2
LOOK_S = 0.25
"""Time between two checks for silent gateways, and for the end of the subscribing process."""
ANSWER_S = 0.05
"""Shortest time between two snapshots: a new subscriber requests one."""
APPLY_S = 0.001
"""Time for which consecutive messages are applied before requests get the loop."""
DELAY_BOUNDS_S = (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0, 5.0)


class SharedBookings:
    """Shared bookings of this process. `clock` is monotonic, one for all processes of a host."""

    def __init__(
        self,
        options: RedisOptions,
        place: ProcessView,
        *,
        is_atomic: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert place.far_row is not None
        self.place = place
        self.host = place.table.host(secrets.randbits(62) | 1)
        self.remote_hosts = RemoteHosts(place.table, place.far_row, self.host)
        self.delays_s = Histogram(DELAY_BOUNDS_S)
        self.num_undecodable = 0
        self.is_subscriber = False
        self.is_lost = False
        self.num_losses = 0
        self._options = options
        self._clock = clock
        channel = channel_of(options)
        self.publish_connection = PublishConnection(options, channel)
        self.lock = DistributedLock(options, place.table, self.publish_connection) if is_atomic else None
        self._listener = SubscribeConnection(options, channel, 2 * SNAPSHOT_S)
        self._log = RateLimitedLog(log)
        self._asked = asyncio.Event()
        self._asks = False
        self._last_snapshot = (0, 0.0)

    def __repr__(self) -> str:
        return f"SharedBookings({self._options.where}, lost={self.is_lost}, {self.remote_hosts})"

    async def start(self, tasks: Tasks) -> None:
        """Start publishing and subscribing; waits for a server that is away. Raises
        `redis.client.UnusableRedis`."""
        client = open_client(self._options, max_connections=1)
        try:
            await check(client, self._options)
        except LOST:
            pass  # the publishing task logs it
        finally:
            await client.aclose()
        place, gateway = self.place, secrets.randbits(61) | 1
        if not self.lock:  # under the lock no other gateway decides
            place.ledger.unconfirmed = UnconfirmedBookings()
        place.publishes_as(gateway)
        self.publisher = BookingsPublisher(
            place.ledger,
            place.assumed,
            host=self.host,
            gateway=gateway,
            send=self.publish_connection.publish,
            loop=asyncio.get_running_loop(),
        )
        place.assumed.on_forget = self._forget
        tasks.start("publish bookings", self._publish())
        tasks.start("receive bookings", self._receive())
        if self.lock:
            self.lock.start(tasks, self.publisher)

    async def print_check(self) -> bool:
        """Print for people what permissions are missing; returns True if none."""
        try:
            refused = await refusals(self._options, is_atomic=self.lock is not None)
        except (*LOST, UnusableRedis) as exc:
            print_lines(failure(exc, self._options.where))
            return False
        finally:
            await self.close()
        if list(refused) == ["+multi"]:
            print_lines(f"redis: permissions for bookings not checked: {refused['+multi']}")
        elif refused:
            print_lines(advice(self._options, refused))
            return False
        return True

    @property
    def under_lock(self) -> Callable[[Callable[[], None]], None] | None:
        """Function that calls its argument when this gateway may decide; None where it always may."""
        return self.lock.enter if self.lock else None

    async def close(self) -> None:
        """Publish the end and close the connections; tasks have ended by now."""
        if self.lock:
            await self.lock.close()
        if hasattr(self, "publisher"):
            self.publish_connection.publish(self.publisher.farewell())
        await self.publish_connection.end()
        await self._listener.end()

    def age_s(self) -> float:
        return self.remote_hosts.age_s(self._clock())

    async def _publish(self) -> None:
        while True:
            try:
                await self.publish_connection.open()
                while True:
                    await self._publish_snapshot()
                    await asyncio.sleep(ANSWER_S)
                    await _wait(self._asked, SNAPSHOT_S - ANSWER_S)
            except LOST as exc:
                self._lost(exc)
            await self.publish_connection.close()
            await asyncio.sleep(RETRY_S)

    async def _publish_snapshot(self) -> None:
        self._asked.clear()
        asks, self._asks = self._asks, False
        data = self.publisher.snapshot(asks=asks)
        self._last_snapshot = self.publisher.seq, self._clock()
        await self.publish_connection.publish_confirmed(data)
        if self.is_lost and (self._listener.is_open or not self.is_subscriber):
            self.is_lost = False
            self._log.info("redis available again; bookings are shared")

    async def _receive(self) -> None:
        while not self.place.become_subscriber():  # noqa: ASYNC110  the lock of a process that ends wakes nothing
            await asyncio.sleep(LOOK_S)
        self.remote_hosts.begin()
        self.is_subscriber = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._expire())
            group.create_task(self._listen())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.remote_hosts.expire(self._clock())

    async def _listen(self) -> None:
        while True:
            try:
                await self._listener.open()
                self._asks = True
                self._asked.set()
                await self._note_all()
            except LOST as exc:
                self._lost(exc)
            await self._listener.close()
            await asyncio.sleep(RETRY_S)

    async def _note_all(self) -> None:
        """Apply messages as they come, yielding to the loop now and then: waiting messages need no wait."""
        began = self._clock()
        while True:
            await self._note(await self._listener.next())
            if self._clock() - began > APPLY_S:
                await asyncio.sleep(0)
                began = self._clock()

    async def _note(self, data: bytes) -> None:
        message = decode(data)
        if message is None:
            self.num_undecodable += 1
            return
        now = self._clock()
        await in_slices(self.remote_hosts.receive_in_steps(message, now))
        if message.host != self.host:
            if message.asks:
                self._asked.set()
        elif message.seq == self._last_snapshot[0] and message.gateway == self.publisher.gateway:
            self.delays_s.observe(now - self._last_snapshot[1])

    def _forget(self, worker: WorkerId) -> None:
        if self.is_subscriber:
            self.remote_hosts.forget(worker)

    def _lost(self, exc: BaseException) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.num_losses += 1
            self._log.warning("redis lost, using only this host's bookings: %s", cause_of(exc))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
