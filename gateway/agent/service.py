"""gRPC service of an agent: `proto/kvgate/v1/kv_events.proto` over journals.

Messages are bytes already, the same for all readers, so gRPC has nothing to encode. Writing waits for the
reader's flow control: a slow reader keeps its position in the log.
"""

import asyncio
import hmac
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gateway.core.errors import ConfigError
from gateway.core.kv_events import DecodeError
from gateway.replication.codec import SERVICE, LogRequest, decode_request, encode, encode_hello
from gateway.replication.journal import JournalReader
from gateway.replication.messages import VERSION, AgentHello
from gateway.replication.rank_store import RankState
from gateway.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger("kvgate.agent")

MAX_READERS = 256
"""Readers at most: processes of gateways times ranks. Each may hold a snapshot, 16 bytes a block, and a
socket's buffers."""
MAX_CALLS = 4096
"""Readers, and calls that have not yet shown a token or sent their request."""
REQUEST_TIMEOUT_S = 5.0
"""For a call to send its request, which is a few bytes."""
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
    ("grpc.keepalive_time_ms", 20_000),  # a gateway on a vanished host sends no FIN
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # gateways ping as often
    ("grpc.http2.max_ping_strikes", 0),
]

Find = Callable[[int], "tuple[AgentHello, RankState] | None"]
"""Returns the stream of a DP rank; None while its engine is unknown, or where it has no such rank."""


Write = Callable[[bytes], Awaitable[None]]


class KvEvents:
    """gRPC servicer that streams KV events; `token` is required of readers, if it is set."""

    def __init__(self, find: Find, token: str | None = None) -> None:
        self._find = find
        self._token = f"Bearer {token}".encode() if token else None
        self._rng = random.Random()
        self._log = RateLimitedLog(log)
        self.num_readers = 0

    def handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # streams on this side only: a unary call's request is awaited before its token is looked at
                "Describe": grpc.stream_unary_rpc_method_handler(self._describe),
                "Subscribe": grpc.stream_stream_rpc_method_handler(self._subscribe),
            },
        )

    async def _describe(self, requests: Any, context: Any) -> bytes:
        hello, _, _ = await self._begin(context)
        return encode_hello(hello)

    async def _subscribe(self, requests: Any, context: Any) -> None:
        hello, rank, asked = await self._begin(context)
        if self.num_readers >= MAX_READERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_READERS} streams are open, the limit"
            )
        wake = asyncio.Event()
        reader = rank.journal.read(asked.epoch, asked.next_seq)
        rank.changed.add(wake.set)
        self.num_readers += 1
        where = hello.dp_rank, context.peer(), asked.next_seq, asked.epoch
        self._log.info("rank %d: reader %s connected, at batch %d of epoch %d", *where)
        try:
            await context.write(encode(hello))
            await self._stream(rank, reader, wake, asked.sample_every_s, context.write)
        finally:
            rank.changed.discard(wake.set)
            self.num_readers -= 1
            self._log.info("rank %d: reader %s disconnected: %r", hello.dp_rank, context.peer(), reader)
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, "the engine process of this rank has ended or was replaced"
        )

    async def _stream(
        self, rank: RankState, reader: JournalReader, wake: asyncio.Event, sample_every_s: int, write: Write
    ) -> None:
        """Stream until the rank is gone."""
        loop, sampled_s = asyncio.get_running_loop(), 0.0
        while not rank.is_gone:
            wake.clear()
            while (data := reader.next()) is not None and not rank.is_gone:
                await write(data)
            if sample_every_s and loop.time() - sampled_s >= sample_every_s and not rank.is_gone:
                sampled_s = loop.time()
                await write(reader.sample(rank.inventory, self._rng))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(sample_every_s or None):
                    await wake.wait()

    async def _begin(self, context: Any) -> tuple[AgentHello, RankState, LogRequest]:
        """Handshake of a reader. Aborts, which raises, where nothing can be streamed to it."""
        if self._token and not hmac.compare_digest(_shown(context), self._token):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")
        try:
            asked = decode_request(await _request(context))
        except DecodeError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        if asked.version != VERSION:
            message = f"this agent speaks protocol version {VERSION}, not {asked.version}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        found = self._find(asked.dp_rank)
        if found is None:
            rank = asked.dp_rank
            message = f"rank {rank} is unknown: the engine does not answer, or publishes no events"
            await context.abort(grpc.StatusCode.UNAVAILABLE, message)
            raise AssertionError("abort raises")
        return *found, asked


async def _request(context: Any) -> bytes:
    """The call's request. Aborts, which raises, a call that sends none in time."""
    message: object = None
    with suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            message = await context.read()
    if not isinstance(message, bytes):
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {REQUEST_TIMEOUT_S:g} s")
        raise AssertionError("abort raises")
    return message


def _shown(context: Any) -> bytes:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value if isinstance(value, bytes) else str(value).encode()
    return b""


async def serve(
    service: KvEvents, listen: str, credentials: Any | None = None
) -> tuple[grpc.aio.Server, int]:
    """Start a server. Returns it and its port. Raises ConfigError for an address that cannot be listened
    on."""
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((service.handlers(),))
    try:
        port = (
            server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
        )
    except RuntimeError as exc:
        raise ConfigError(f"listen: cannot listen on {listen}: is the port in use?") from exc
    await server.start()
    return server, int(port)


def server_credentials(cert_file: str, key_file: str, client_ca_file: str) -> Any:
    """TLS credentials that are reloaded at each handshake that finds the files changed. Raises
    ConfigError."""
    files = [file for file in (cert_file, key_file or cert_file, client_ca_file) if file]
    last: list[bytes] = []

    def look() -> Any:
        try:
            content = [Path(file).read_bytes() for file in files]
        except OSError as exc:
            if not last:
                raise ConfigError(f"{exc.filename} cannot be read: {exc.strerror}") from exc
            return None  # the previous credentials stay
        if content == last:
            return None
        last[:] = content
        ca = content[2] if client_ca_file else None
        return grpc.ssl_server_certificate_configuration([(content[1], content[0])], ca)

    return grpc.dynamic_ssl_server_credentials(
        look(), look, require_client_authentication=bool(client_ca_file)
    )
