"""Feed of a worker's KV events from its agent, and from the engine itself where there is no agent.

    agent's log ──lost──► resubscribe at once ──no answer──► the engine's own events, starting at the
        ▲                    (the log continues)             batch that the agent last processed
        └──── probed every few seconds, followed again when it is complete and we are not ◄────┘

With an agent, a gateway that starts is exact at once: it receives a snapshot, where the engine's replay
buffer may not reach back. Agent and engine report the same blocks under the same engine hashes, so that
either continues where the other stopped; the digest of the last batch proves that it is the same stream.
Where neither can be reached, the index keeps the worker's blocks for a minute.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from gateway.core.block_limits import BlockLimits
from gateway.core.event_stream import Stream, StreamCounts, StreamState
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Worker, WorkerId
from gateway.http.url import host_port
from gateway.index.assumed import AssumedIndex
from gateway.index.base import Index
from gateway.ingest.base import Feed
from gateway.ingest.pauses import Backoff
from gateway.ingest.subscription import Subscription
from gateway.ingest.time_slices import TimeSlices
from gateway.replication.agent_targets import Agents
from gateway.replication.applier import Applier, LimitExceeded
from gateway.replication.codec import (
    MAX_MESSAGE_BYTES,
    SERVICE,
    LogRequest,
    decode,
    decode_hello,
    encode_request,
)
from gateway.replication.follower import Drift, Follower, LogError
from gateway.replication.messages import VERSION, AgentHello, BlockSample, Update
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tasks import Tasks

log = logging.getLogger("kvgate.ingest")

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for other traffic
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),  # the agent of a vanished host sends no FIN
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


@dataclass(frozen=True, slots=True)
class AgentTimes:
    """Time limits of agent feeds, in seconds.

    hello_s     for an agent's introduction
    pause_s     before a lost agent is asked again
    retry_s     between two probes of an agent, while the engine's own events are read
    patience_s  for an agent that is catching up itself; then the engine's own events are tried
    sample_every_s  between two comparisons with the agent's blocks, whole seconds
    forget_s    for which blocks are kept without any source: about what a busy cache keeps
    """

    hello_s: float = 3.0
    pause_s: float = 0.05
    retry_s: float = 2.0
    patience_s: float = 15.0
    sample_every_s: int = 10
    forget_s: float = 60.0


OpenEngine = Callable[[], tuple[Feed, Subscription]]
"""Starts reading the engine's own events. Raises ValueError where they are not available."""


class AgentFeed:
    """Feed of one worker. `refusal` explains why an agent is not this worker's, None if it is."""

    def __init__(
        self,
        worker: Worker,
        *,
        agent: str,
        agents: Agents,
        index: Index,
        assumed: AssumedIndex,
        refusal: Callable[[AgentHello], str | None],
        open_engine: OpenEngine,
        on_state: Callable[[WorkerId, StreamState], None],
        time_slices: TimeSlices,
        times: AgentTimes = AgentTimes(),  # noqa: B008 - frozen
        limits: BlockLimits | None = None,
    ) -> None:
        self.agent = agent
        self._worker = worker.id
        self._dp_rank = worker.dp_rank
        self._agents = agents
        self._index = index
        self._applier = Applier(worker.id, index, assumed, limits)
        self._pauses = Backoff()
        self._paused_until = 0.0
        self._log = RateLimitedLog(log)
        self._refusal = refusal
        self._open_engine = open_engine
        self._on_state = on_state
        self._time_slices = time_slices
        self._times = times
        self._follower = Follower(StreamCounts())
        self._engine: tuple[Feed, Subscription] | None = None
        self._is_following = self.has_fallen_back = self._is_stopped = False
        self._reported: StreamState | None = None
        self._why: str | None = None
        self._forget_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"AgentFeed({self._worker}, {self.endpoint}, connected={self.is_connected}, {self.stream})"

    @property
    def stream(self) -> Stream | Follower:
        """Stream that is being read: the engine's or the agent's."""
        return self._engine[1].stream if self._engine else self._follower

    @property
    def endpoint(self) -> str:
        return self._engine[0].endpoint if self._engine else f"grpc://{self.agent}"

    @property
    def replay_endpoint(self) -> str | None:
        return self._engine[0].replay_endpoint if self._engine else None

    @property
    def is_connected(self) -> bool:
        return self._engine[0].is_connected if self._engine else self._is_following

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(f"agent of {self._worker}", self._run())

    def stop(self) -> None:
        self._is_stopped = True
        if self._task:
            self._task.cancel()
        self._close_engine()

    async def _run(self) -> None:
        while True:
            if await self._follow():
                await asyncio.sleep(self._times.pause_s)
                continue
            if not self.has_fallen_back:
                self._fall_back()
            await self._watch_agent()

    # the agent ---------------------------------------------------------------------------------

    async def _follow(self) -> bool:
        """Follow the agent until it stops; True if resubscribing at once makes sense."""
        try:
            async with open_channel(self.agent, self._agents) as channel:
                return await self._follow_on(channel)
        except OSError as exc:
            self._not_followed(failure(exc))
            self._report()
            return False

    async def _follow_on(self, channel: grpc.aio.Channel) -> bool:
        cursor, has_followed, excess = self._follower.cursor, False, None
        asked = LogRequest(VERSION, self._dp_rank, cursor.epoch, cursor.next_seq, self._times.sample_every_s)
        request = encode_request(asked)
        call = channel.unary_stream(f"/{SERVICE}/Subscribe")(request, metadata=metadata(self._agents))
        try:
            hello = await self._read(call, self._times.hello_s)
            if not self._accepts(hello):
                return False
            while True:
                is_waiting = self._follower.state is StreamState.CATCHING_UP
                update = await self._read(call, self._times.patience_s if is_waiting else None)
                await self._time_slices.run(partial(self._apply, update))
                self._report()
                if self._follower.state is not StreamState.CATCHING_UP:
                    has_followed = True
        except LimitExceeded as exc:
            excess, has_followed = str(exc), False
        except (grpc.aio.AioRpcError, TimeoutError, DecodeError, LogError) as exc:
            if has_followed:
                write = self._log.warning if isinstance(exc, Drift) else self._log.info
                write("worker %s: agent %s stopped: %s", self._worker, self.agent, failure(exc))
            else:
                self._not_followed(failure(exc))
        finally:
            call.cancel()
            self._is_following = False
            self._follower.lost()
        if excess is not None:
            self._cut(excess)
        self._report()
        return has_followed

    def _cut(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        pause_s = self._pauses.next(now)
        self._paused_until = now + pause_s
        self._follower.cut(reason)
        text = "worker %s: agent %s paused for %g s, stream is BLIND: %s"
        self._log.warning(text, self._worker, self.agent, pause_s, reason)

    async def _read(self, call: Any, timeout_s: float | None) -> Update:
        async with asyncio.timeout(timeout_s):
            data = await call.read()
        if data is grpc.aio.EOF:
            raise LogError("the agent ended the stream")
        return decode(data)

    def _accepts(self, hello: Update) -> bool:
        if not isinstance(hello, AgentHello):
            raise LogError("the agent did not begin with its hello")
        if why := self._refusal(hello):
            self._not_followed(why)
            return False
        self._close_engine()
        self._is_following, self._why = True, None
        self._follower.advance(hello)
        self._log.info("worker %s: following agent %s", self._worker, self.agent)
        return True

    def _apply(self, update: Update) -> None:
        changes = self._follower.advance(update)
        try:
            self._applier.apply(changes)
        except LogError:
            self._follower.forget()
            raise
        if isinstance(update, BlockSample):
            self._compare(update)

    def _compare(self, sample: BlockSample) -> None:
        """Compare the index with a sample of the agent: number of blocks, and one prefix."""
        num_blocks = self._index.num_blocks(self._worker)
        self._follower.counts.num_samples += 1
        if num_blocks == sample.num_blocks and self._index.holds(self._worker, sample.path):
            return
        self._follower.counts.num_drifts += 1
        self._follower.forget()
        raise Drift(
            f"the agent holds {sample.num_blocks} blocks and the index {num_blocks}"
            f" ({len(sample.path)} were compared); resyncing"
        )

    # the engine --------------------------------------------------------------------------------

    def _fall_back(self) -> None:
        """Read the engine's own events; the index is kept if the engine can prove that they continue from
        there."""
        follower, self.has_fallen_back = self._follower, True
        try:
            self._engine = self._open_engine()
            self._log.info("worker %s: reading the engine's own events at %s", self._worker, self.endpoint)
        except ValueError as exc:
            self._log.warning("worker %s: engine events not readable either: %s", self._worker, exc)
        position = follower.handover
        if self._engine:
            stream = self._engine[1].stream
            stream.counts = follower.counts
            position = position if stream.can_replay else None
            if position:
                stream.adopt(position, follower.blind_reason)
        if position is None:
            self._applier.reset()
        follower.forget()
        loop = asyncio.get_running_loop()
        self._forget_timer = loop.call_later(self._times.forget_s, self._expire)

    async def _watch_agent(self) -> None:
        """Probe the agent until it is more complete than this gateway."""
        while True:
            await asyncio.sleep(self._times.retry_s)
            if asyncio.get_running_loop().time() < self._paused_until:
                continue
            if self._engine and self._engine[1].stream.state is StreamState.EXACT:
                continue
            try:
                async with open_channel(self.agent, self._agents) as channel:
                    hello = await describe(channel, self._agents, self._dp_rank, self._times.hello_s)
            except (grpc.aio.AioRpcError, DecodeError, OSError) as exc:
                self._not_followed(failure(exc))
                continue
            if why := self._refusal(hello):
                self._not_followed(why)
            elif hello.status.state is StreamState.EXACT or not self.is_connected:
                return

    def _expire(self) -> None:
        """Drop the worker's blocks after a time without any source: the engine may hold anything by then."""
        if self.is_connected:
            return
        if self._engine:
            self._engine[1].replay_failed("neither agent nor engine events are reachable")
        else:
            self._log.warning("worker %s: agent unreachable; dropping the worker's blocks", self._worker)
            self._applier.reset()
            self._on_state(self._worker, StreamState.BLIND)

    def _close_engine(self) -> None:
        self.has_fallen_back, self._reported = False, None
        if self._forget_timer:
            self._forget_timer.cancel()
        if self._engine:
            self._engine[0].stop()
            self._engine = None

    # both --------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report a changed state, unless the engine's own subscription does."""
        if not (self.has_fallen_back or self._is_stopped) and self._reported is not self._follower.state:
            self._reported = self._follower.state
            self._on_state(self._worker, self._reported)

    def _not_followed(self, why: str) -> None:
        """Log each reason once, until the agent is followed again."""
        if why != self._why:
            self._why = why
            self._log.warning("worker %s: agent %s rejected: %s", self._worker, self.agent, why)


@contextlib.asynccontextmanager
async def open_channel(target: str, agents: Agents) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to the current addresses of an agent, resolved and judged here. Raises
    OSError."""
    addresses, options = await agents.resolve(target), [*_OPTIONS, ("grpc.default_authority", target)]
    if (tls := agents.tls) is None:
        channel = grpc.aio.insecure_channel(addresses, options=options)
    else:
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        options.append(("grpc.ssl_target_name_override", host_port(target)[0]))
        channel = grpc.aio.secure_channel(addresses, credentials, options=options)
    async with channel:
        yield channel


def metadata(agents: Agents) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {agents.token}"),) if agents.token else ()


async def describe(channel: grpc.aio.Channel, agents: Agents, dp_rank: int, timeout_s: float) -> AgentHello:
    """Return an agent's introduction. Raises grpc.aio.AioRpcError, DecodeError."""
    call = channel.unary_unary(f"/{SERVICE}/Describe")
    request = encode_request(LogRequest(VERSION, dp_rank))
    return decode_hello(await call(request, timeout=timeout_s, metadata=metadata(agents)))


async def reach(agents: Agents, target: str, dp_rank: int, timeout_s: float) -> AgentHello | str:
    """Return an agent's introduction, or why there is none."""
    try:
        async with open_channel(target, agents) as channel:
            return await describe(channel, agents, dp_rank, timeout_s)
    except (grpc.aio.AioRpcError, DecodeError, OSError) as exc:
        return failure(exc)


def failure(exc: Exception) -> str:
    """Describe a gRPC, decode or name-resolution error for people."""
    if isinstance(exc, grpc.aio.AioRpcError):
        return f"{exc.code().name.lower()}: {exc.details()}"
    return (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__
