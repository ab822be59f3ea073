"""Server-sent events for what moves: answers of the admin API, sent again where they have changed.

    GET /admin/events?topics=workers,requests ─► event: workers, data: the answer of /admin/workers …

A stream takes a fiftieth of the process at most: a large fleet's answer comes more rarely. It ends after
STREAM_S, and the browser connects again: a key that expires closes its consoles, and those of a gateway that
is replaced go to the next one.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.core.errors import GatewayError

INTERVAL_S = 1.0
STREAM_S = 30.0
WRITE_S = 10.0
"""Time beyond that for a client that reads slowly; then its connection is aborted."""
MAX_STREAMS = 32
LEAST_REST = 50.0
"""A stream rests this many times as long as its answers took."""
RECONNECT_MS = 500

PATHS: Mapping[str, str] = {
    "workers": "/admin/workers",
    "requests": "/admin/requests?limit=200",
    "traffic": "/admin/traffic?limit=3",
}
"""The question of each topic."""


@dataclass(slots=True)
class Streams:
    """Open streams of an application; `has_ended` is set when it stops."""

    num_open: int = 0
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


STREAMS = web.AppKey("STREAMS", Streams)


def add_streams(app: web.Application) -> None:
    """Let the streams of an application end when it stops."""
    app[STREAMS] = streams = Streams()

    async def end(app: web.Application) -> None:
        streams.has_ended.set()

    app.on_shutdown.append(end)


def event_handlers(sources: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers by their name in the table (`admin/endpoint_table.py`); `sources` are those of the topics."""

    async def events(request: web.Request) -> web.StreamResponse:
        topics = request.query.get("topics", "").split(",")
        unknown = [topic for topic in topics if topic not in sources]
        if unknown:
            known = ", ".join(sources)
            return _refusal(f"unknown topic '{unknown[0][:40]}' in ?topics=; known: {known}", 400)
        streams = request.app[STREAMS]
        if streams.num_open >= MAX_STREAMS:
            return _refusal(f"{MAX_STREAMS} event streams are open, the limit; close one and retry", 503)
        streams.num_open += 1
        try:
            async with asyncio.timeout(STREAM_S + WRITE_S):
                return await _stream(request, {topic: sources[topic] for topic in topics}, streams.has_ended)
        except TimeoutError:
            if request.transport:
                request.transport.abort()
            raise ConnectionResetError("the client does not read its events") from None
        finally:
            streams.num_open -= 1

    return {"events": events}


async def _stream(
    request: web.Request, sources: Mapping[str, Handler], has_ended: asyncio.Event
) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(b"retry: %d\n\n" % RECONNECT_MS)
    sent: dict[str, bytes] = {}
    ends_s = time.monotonic() + STREAM_S
    while time.monotonic() < ends_s and not has_ended.is_set():
        began_s = time.monotonic()
        for topic, source in sources.items():
            body = await _ask(request, source, PATHS[topic])
            if body is not None and sent.get(topic) != body:
                sent[topic] = body
                await response.write(b"event: %b\ndata: %b\n\n" % (topic.encode(), body))
        await response.write(b"event: tick\ndata: {}\n\n")
        rest_s = max(INTERVAL_S, LEAST_REST * (time.monotonic() - began_s))
        try:
            async with asyncio.timeout(min(rest_s, max(0.0, ends_s - time.monotonic()))):
                await has_ended.wait()
        except TimeoutError:
            continue
    return response


async def _ask(request: web.Request, source: Handler, path: str) -> bytes | None:
    """The JSON of an answer, which has no line breaks; None for an error."""
    answer = await source(request.clone(rel_url=path))
    is_good = isinstance(answer, web.Response) and answer.status == 200
    return answer.body if is_good and isinstance(answer.body, bytes) else None  # type: ignore[attr-defined]


def _refusal(message: str, status: int) -> web.Response:
    return web.Response(status=status, body=GatewayError(message).body(), content_type="application/json")
