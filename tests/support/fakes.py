"""Stand-ins with a wire that a test can write by hand, and the small world that most shells need."""

import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from xxhash import xxh3_64_intdigest

from gateway.core.blocks import root_hash, tokens_of
from gateway.core.decision import Candidate, Decision, Timings
from gateway.core.engine import (
    AdapterCalls,
    Engine,
    EngineFlags,
    EngineInfo,
    EngineMarks,
    EngineMetrics,
    EnginePaths,
    EventSource,
    ModelInfo,
    StreamUsage,
)
from gateway.core.kv_events import BlocksCleared, BlocksStored, DecodeError, EventBatch, KvEvent
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.discovery.engine_detection import Engines
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.upstream.control_client import ControlSession

BLOCK_SIZE = 4
END = b"\xff" * 8

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


def payload(*blocks: int, ts: float = 1.0, clear: bool = False, parent: int | None = None) -> bytes:
    """A batch that stores `blocks` as one run; block n has the tokens n, n, n, n."""
    return json.dumps({"ts": ts, "blocks": blocks, "clear": clear, "parent": parent}).encode()


def seq_frame(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


class FakeEngine:
    """Engine with JSON in place of msgpack and Prometheus text."""

    name = "fake"
    marks = EngineMarks()
    usage = StreamUsage()
    paths = EnginePaths("/health", "/metrics", "/v1/models", "/version", "/kv_event_sources")
    flags = EngineFlags(events="--publish", cached_tokens="--report-cached")
    reports_from: tuple[int, ...] | None = None
    adapters: AdapterCalls | None = AdapterCalls("/load", "/unload", "--with-adapters")
    salts_from: tuple[int, ...] | None = ()
    salted_paths: frozenset[str] | None = None
    takes_lists: bool = True
    loads_by_name: bool = False

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        if len(frames) != 3 or len(frames[1]) != 8:
            raise DecodeError("fake: not [topic, seq, payload]")
        return _batch(frames[1], frames[2])

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        return None if frames[-2] == END else _batch(frames[-2], frames[-1])

    def decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> Iterator[EventBatch | None]:
        yield None
        yield self.decode_replay(frames) if is_replay else self.decode(frames)

    def replay_request(self, start_seq: int) -> list[bytes]:
        return [b"", seq_frame(start_seq)]

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        return {int(rank): EngineMetrics(**fields) for rank, fields in _json(text).items()}

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(**fields) for fields in _json(body))

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        return tuple(EventSource(**fields) for fields in _json(body))

    def parse_version(self, body: bytes) -> str:
        return str(_json(body))

    def parse_info(self, body: bytes | None) -> EngineInfo:
        fields = _json(body) if body else {}
        ranks = {int(rank): EngineMetrics(**more) for rank, more in fields.get("ranks", {}).items()}
        return EngineInfo(ranks=ranks, role=fields.get("role"))

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        yield None
        yield from self.decode_poll(body, block_size, now)

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        """Each event as `[seq, blocks]`."""
        reported = _json(body)
        return [_batch(seq_frame(seq), payload(*blocks, ts=now)) for seq, blocks in reported]


def _batch(seq: bytes, body: bytes) -> EventBatch:
    fields = _json(body)
    events: list[KvEvent] = [BlocksCleared()] if fields["clear"] else []
    if blocks := fields["blocks"]:
        tokens = tokens_of([block for block in blocks for _ in range(BLOCK_SIZE)])
        events.append(BlocksStored(blocks, fields["parent"], tokens, BLOCK_SIZE))
    return EventBatch(int.from_bytes(seq, "big"), fields["ts"], 0, events, xxh3_64_intdigest(body))


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise DecodeError(f"fake: {exc}") from exc


class Known:
    """Index of known and assumed blocks, with some workers in it."""

    def __init__(self, *names: str, keep_s: float = 600.0) -> None:
        self.index, self.assumed = MemoryIndex(), AssumedIndex()
        for name in names:
            self.index.add_worker(WorkerId(name), root_hash("root"), BLOCK_SIZE)
            self.assumed.add_worker(WorkerId(name), keep_s=keep_s, max_blocks=1000)

    def num_blocks(self, name: str) -> int:
        return self.index.num_blocks(WorkerId(name))


def worker(name: str = "w:1", *served: ServedModel, block_size: int | None = 16) -> Worker:
    return Worker(
        WorkerId(name), f"http://{name}", served or (ServedModel("m", "root"),), block_size=block_size
    )


def decision(id: str = "d1", *names: str, reason: str = "because") -> Decision:
    """A decision for the first of `names`; candidate i has i in all of its numbers."""
    workers = [worker(name) for name in names or ("w:1",)]
    candidates = tuple(
        Candidate(w, i, 100 - i, 10 * i, i, num_waiting=i, kv_usage=i / 10, is_exact=i == 0)
        for i, w in enumerate(workers)
    )
    terms = tuple(float(i) for i in range(len(workers)))
    return Decision(
        id=id,
        model="m",
        policy="p",
        worker=workers[0],
        num_tokens=100,
        overlap_tokens=64,
        reason=reason,
        candidates=candidates,
        terms=terms,
        prompt_from="ids",
        timings_s=Timings(prompt=0.00025),
    )


async def serve(*routes: web.RouteDef) -> TestServer:
    """An aiohttp server on a free loopback port; the caller closes it."""
    app = web.Application()
    app.add_routes(routes)
    server = TestServer(app)
    await server.start_server()
    return server


def url_of(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")


def session(timeout_s: float = 5.0) -> ControlSession:
    return ControlSession(timeout_s=timeout_s)


def only(engine: Engine) -> Engines:
    """Engine detection that finds this one at every endpoint."""
    return Engines({engine.name: engine}, [engine.name])
