"""Asks an endpoint: which engine it is, what it serves, whether it is up, how loaded it is."""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import aiohttp

from gateway.core.engine import Engine, EngineMetrics, EventSource, ModelInfo
from gateway.discovery.bounds import ranks_refusal, usable
from gateway.discovery.engine_detection import HEALTH, METRICS, MODELS, Engines
from gateway.discovery.probed import Facts, known_ranks
from gateway.http.address import Address
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.upstream.control_client import ControlSession, failure, read_all

log = logging.getLogger("kvgate.roster")

Parsed = TypeVar("Parsed")

UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
CLOSE = {"Connection": "close"}
MAX_BYTES = 1 << 20
"""Of an answer that is neither of the two below: what an engine says of itself has some 50 KB."""
MAX_PAGE_BYTES = 8 << 20
"""Of metrics: 60 KB for each rank."""
MAX_MODELS_BYTES = 3 << 20
"""Of the list of models: vLLM's has 700 bytes for each, and 4,096 of them are used."""
MAX_CARDS = 10_000
"""Objects in the list of models; vLLM's has two for each. So many are decoded, in one go, in some 10 ms."""
LARGE_PAGE_BYTES = 64 << 10
"""Answers from here on are parsed in a thread, which leaves the event loop its turns."""
CONNECT_TIMEOUT_S = 1.0
"""A publisher is in the worker's own network, and it listens before the worker is healthy."""


class ProbeError(Exception):
    """An endpoint that does not answer as an engine does: says which path and how."""


class Silence(ProbeError):
    """Nobody answers there at all, not even with a refusal: it hangs, or is gone with its host."""


async def _parsed(num_bytes: int, parse: Callable[[], Parsed]) -> Parsed:
    return parse() if num_bytes < LARGE_PAGE_BYTES else await asyncio.to_thread(parse)


class Probe:
    """Control calls to one endpoint. `headers` go with each, such as an Authorization."""

    def __init__(
        self,
        url: str,
        engines: Engines,
        session: ControlSession,
        headers: Mapping[str, str],
        events_port: int = 5557,
    ) -> None:
        """`events_port` is where an engine publishes that does not tell, if it does."""
        self.url = url
        self._engines = engines
        self._engine = engines.configured(url)
        self._session = session
        self._headers = headers
        self._events_port = events_port
        self._log = RateLimitedLog(log)
        self._refused_models = ""
        self._num_ranks = 1

    async def facts(self) -> Facts:
        """Everything the endpoint tells of itself, and which engine that makes it. Raises ProbeError."""
        models = await self._listed()
        engine = self._engine = await self._identify(models)
        ranks = await self.metrics()
        sources = await self._optional(engine.paths.event_sources)
        version = await self._optional(engine.paths.version)
        info = await self._optional(engine.paths.info)
        with self._reading():
            told = engine.parse_info(info)
            if sources:
                told = replace(told, sources=engine.parse_event_sources(sources))
            if version:
                told = replace(told, version=engine.parse_version(version))
        if engine.paths.poll and told.sources is None and not await self._publishes():
            told = replace(told, sources=(EventSource(0, engine.paths.poll),))
        every = known_ranks(told.ranks, ranks)
        self._check_ranks(every)
        self._num_ranks = len(every)
        return Facts(
            url=self.url,
            engine=engine.name,
            models=await self._parse_models(engine, models),
            ranks=every,
            sources=told.sources,
            version=told.version,
            role=told.role,
            transfer=told.transfer,
        )

    async def models(self) -> tuple[ModelInfo, ...]:
        """Every name that it answers to now. Raises ProbeError."""
        assert self._engine is not None, "it has told its facts before"
        return await self._parse_models(self._engine, await self._listed())

    async def check_health(self) -> None:
        """Raises ProbeError where the endpoint does not take requests."""
        path = self._engine.paths.health if self._engine else HEALTH
        status, _ = await self._get(path)
        if status == 404:  # an engine without such a path (Ollama): it is well if it lists its models
            path = MODELS
            status, _ = await self._get(path, max_bytes=MAX_MODELS_BYTES)
        if status != 200:
            raise ProbeError(f"{self.url}{path} answered {status}{self._advice(status)}")

    async def metrics(self, *, is_last: bool = False) -> dict[int, EngineMetrics]:
        """Per rank; empty where the endpoint has no metrics. `is_last`: the connection is closed then, so
        that a balancer in between may choose anew for the next one."""
        if self._engine is None:
            return {}
        path = self._engine.paths.metrics
        body = await self._optional(path, CLOSE if is_last else None, MAX_PAGE_BYTES)
        if not body:
            return {}
        with self._reading(path or ""):
            page, parse = body.decode("latin-1"), self._engine.parse_metrics  # a copy, whatever the bytes are
            ranks = await _parsed(len(page), lambda: parse(page))
        self._check_ranks(ranks)
        return ranks

    async def elsewhere(self, url: str, path: str) -> bytes:
        """What another server of the worker's answers. Raises ProbeError."""
        status, body = await self._get(path, url)
        if status != 200:
            raise ProbeError(f"{url}{path} answered {status}")
        return body

    @contextmanager
    def _reading(self, path: str = "") -> Iterator[None]:
        """Whatever makes an answer unreadable is this endpoint's failure, and ends no task of ours: numbers
        of thousands of digits and deep nesting are errors of other kinds than DecodeError."""
        try:
            yield
        except (ValueError, ArithmeticError, RecursionError) as exc:
            raise ProbeError(f"{self.url}{path}: {exc}") from exc

    def _check_ranks(self, ranks: Mapping[int, EngineMetrics]) -> None:
        if refusal := ranks_refusal(len(ranks)):
            raise ProbeError(f"{self.url} {refusal}")

    async def _parse_models(self, engine: Engine, body: bytes) -> tuple[ModelInfo, ...]:
        with self._reading(MODELS):
            found = await _parsed(len(body), lambda: usable(engine.parse_models(body), self._num_ranks))
        if found.refusal and found.refusal != self._refused_models:
            self._log.warning("worker %s: some of its models are ignored: %s", self.url, found.refusal)
        self._refused_models = found.refusal
        return found.models

    async def _identify(self, models: bytes) -> Engine:
        known = self._engines.configured(self.url) or self._engines.by_models(models)
        for path in METRICS if known is None else ():
            page = await self._optional(path, max_bytes=MAX_PAGE_BYTES)
            known = known or self._engines.by_metrics(page or b"")
        return known or self._engines.other

    async def _publishes(self) -> bool:
        """Whether somebody listens where events would be published; they can be polled where not."""
        address = Address.of(self.url)
        if address.unix_path:
            return False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(address.host, self._events_port)
        except (TimeoutError, OSError):
            return False
        peer = writer.get_extra_info("peername")
        writer.close()
        return peer is not None and self._session.address_refusal(peer[0]) is None

    async def _listed(self) -> bytes:
        """The list of models. Raises ProbeError."""
        body = await self._required(MODELS, MAX_MODELS_BYTES)
        if body.count(b"{") > MAX_CARDS:
            raise ProbeError(f"{self.url}{MODELS} lists more than {MAX_CARDS:,} objects")
        return body

    async def _required(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        status, body = await self._get(path, max_bytes=max_bytes)
        if status != 200:
            raise ProbeError(f"{self.url}{path} answered {status}{self._advice(status)}")
        return body

    def _advice(self, status: int) -> str:
        if status == 404 and self.url.endswith("/v1"):  # as clients are given it
            return "; give the worker's address without /v1"
        return "; --worker-key-file FILE gives it the key that it wants" if status == 401 else ""

    async def _optional(
        self, path: str | None, more: Mapping[str, str] | None = None, max_bytes: int = MAX_BYTES
    ) -> bytes | None:
        if path is None:
            return None
        status, body = await self._get(path, more=more, max_bytes=max_bytes)
        return body if status == 200 else None

    async def _get(
        self, path: str, url: str = "", more: Mapping[str, str] | None = None, max_bytes: int = MAX_BYTES
    ) -> tuple[int, bytes]:
        """The key that workers were started with goes to workers only."""
        headers = {**({} if url else self._headers), **(more or {})}
        try:
            async with self._session.call("GET", url or self.url, path, headers=headers) as answer:
                return answer.status, await read_all(answer, max_bytes)
        except TimeoutError as exc:
            raise Silence(f"{url or self.url}{path} did not answer in time") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            kind = Silence if getattr(exc, "errno", None) in UNREACHABLE else ProbeError
            raise kind(f"{url or self.url}{path}: {failure(exc)}") from exc
