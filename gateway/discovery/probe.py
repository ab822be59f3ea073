"""Probes of an endpoint: engine, models, health, load."""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp

from gateway.core.eligibility import is_from
from gateway.core.engine import Engine, EngineMetrics, EventSource, ModelInfo
from gateway.discovery.engine_detection import HEALTH, METRICS, MODELS, Engines
from gateway.discovery.probed import Facts, known_ranks
from gateway.discovery.usable_models import ranks_refusal, usable
from gateway.http.address import Address
from gateway.http.messages import ResponseHead
from gateway.http.redirect import is_redirect, redirect_of
from gateway.http.refusal import is_refusal, refusal_of
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.upstream.control_client import CallProgress, ControlSession, failure, read_all

log = logging.getLogger("kvgate.roster")

Parsed = TypeVar("Parsed")

UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
CLOSE = {"Connection": "close"}
MAX_BYTES = 1 << 20
"""Largest answer other than metrics and the list of models: engine facts have some 50 KB."""
MAX_PAGE_BYTES = 8 << 20
"""Largest page of metrics, which have 60 KB per rank."""
MAX_MODELS_BYTES = 3 << 20
"""Largest list of models: vLLM's has 700 bytes for each, and 4,096 of them are used."""
MAX_OBJECTS = 10_000
"""Objects in an answer; vLLM's list of models has two for each. They decode in some 10 ms."""
LARGE_PAGE_BYTES = 64 << 10
"""Answers from here on are parsed in a thread, which leaves the event loop its turns."""
MAX_JOIN_TIMEOUT_S = 60.0
"""Longest timeout of a page before an endpoint has joined. Pages of a busy engine were seen to take 40 s, and
nothing is lost by waiting."""
CONNECT_TIMEOUT_S = 1.0
"""Connect timeout of a publisher, which is in the worker's own network and listens before the worker is
healthy."""


class ProbeError(Exception):
    """The endpoint does not answer as an engine; the message has the path and the failure."""


class ProbeTimeout(ProbeError):
    """No answer at all, not even a refusal: the endpoint is late or hangs (`is_accepted`: it accepted the
    connection), or its host is gone."""

    def __init__(self, message: str, *, is_accepted: bool = False) -> None:
        super().__init__(message)
        self.is_accepted = is_accepted


async def _parsed(num_bytes: int, parse: Callable[[], Parsed]) -> Parsed:
    return parse() if num_bytes < LARGE_PAGE_BYTES else await asyncio.to_thread(parse)


class Probe:
    """Probe of one endpoint. `headers` go with each call, such as an Authorization."""

    def __init__(
        self,
        url: str,
        engines: Engines,
        session: ControlSession,
        headers: Mapping[str, str],
        events_port: int = 5557,
    ) -> None:
        """Create a probe; `events_port` is the publisher's port of an engine that reports none."""
        self.url = url
        self._engines = engines
        self._engine = engines.configured(url)
        self._session = session
        self._headers = headers
        self._events_port = events_port
        self._log = RateLimitedLog(log)
        self._refused_models = ""
        self._num_ranks = 1
        self._timeout_s: float | None = None
        self.num_answers = 0
        """Pages that began to be answered, whatever their status: signs of life."""

    def wait_longer(self, is_longer: bool = True) -> None:
        """Double the timeout of each page, for an endpoint that has not joined; or go back to the usual
        one."""
        usual_s = self._session.timeout_s or MAX_JOIN_TIMEOUT_S
        longer_s = min(2 * (self._timeout_s or usual_s), max(MAX_JOIN_TIMEOUT_S, usual_s))
        self._timeout_s = longer_s if is_longer else None

    async def facts(self) -> Facts:
        """Return everything the endpoint reports, and its engine. Raises ProbeError."""
        models = await self._listed()
        engine = self._engine = await self._identify(models)
        ranks = await self.metrics()
        sources = await self._optional(engine.paths.event_sources)
        version = await self._optional(engine.paths.version)
        info = await self._optional(engine.paths.info)
        with self._reading():
            info_found = engine.parse_info(info)
            if sources:
                info_found = replace(info_found, sources=engine.parse_event_sources(sources))
            if version:
                info_found = replace(info_found, version=engine.parse_version(version))
        if engine.paths.poll and info_found.sources is None and not await self._publishes():
            info_found = replace(info_found, sources=(EventSource(0, engine.paths.poll),))
        every = known_ranks(info_found.ranks, ranks)
        self._check_ranks(every)
        self._num_ranks, hit_rule = len(every), info_found.hit_rule
        return Facts(
            url=self.url,
            engine=engine.name,
            models=await self._parse_models(engine, models),
            ranks=every,
            sources=info_found.sources,
            version=info_found.version,
            role=info_found.role,
            transfer=info_found.transfer,
            rendering=info_found.rendering,
            hit_rule=hit_rule.settled(is_newer=is_from(hit_rule.drops_until, info_found.version)),
            reports_cached_tokens=info_found.reports_cached_tokens,
            max_running=info_found.max_running,
        )

    async def models(self) -> tuple[ModelInfo, ...]:
        """Return the model names that the endpoint answers to now. Raises ProbeError."""
        assert self._engine is not None, "facts() comes first"
        return await self._parse_models(self._engine, await self._listed())

    async def check_health(self) -> None:
        """Raise ProbeError where the endpoint does not accept requests."""
        path = self._engine.paths.health if self._engine else HEALTH
        status, body = await self._get(path)
        if is_refusal(status) and refusal_of(ResponseHead(status, []), body, now_s=0.0).is_busy:
            return  # saturated, and well; without headers, since a time to wait is named at a start too
        if status == 404:  # an engine without such a path (Ollama) is healthy if it lists its models
            path = MODELS
            status, body = await self._get(path, max_bytes=MAX_MODELS_BYTES)
        if status != 200:
            raise ProbeError(f"{self.url}{path} answered {self._shown(status, body)}")

    async def metrics(self, *, is_last: bool = False) -> dict[int, EngineMetrics]:
        """Return metrics per rank; empty where the endpoint has none. `is_last` closes the connection, so
        that a load balancer may route the next one elsewhere."""
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
        """Return the answer of another server of the worker. Raises ProbeError."""
        status, body = await self._get(path, url)
        if status != 200:
            raise ProbeError(f"{url}{path} answered {body.decode() if is_redirect(status) else status}")
        return body

    @contextmanager
    def _reading(self, path: str = "") -> Iterator[None]:
        """Raise ProbeError for anything that makes an answer unreadable: numbers of thousands of digits and
        deep nesting raise other errors than DecodeError."""
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
            self._log.warning("worker %s: ignoring some of its models: %s", self.url, found.refusal)
        self._refused_models = found.refusal
        return found.models

    async def _identify(self, models: bytes) -> Engine:
        known = self._engines.configured(self.url) or self._engines.by_models(models)
        for path in METRICS if known is None else ():
            page = await self._optional(path, max_bytes=MAX_PAGE_BYTES)
            known = known or self._engines.by_metrics(page or b"")
        return known or self._engines.other

    async def _publishes(self) -> bool:
        """Return True if a publisher listens at the events port; otherwise events can be polled."""
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
        return await self._required(MODELS, MAX_MODELS_BYTES)

    async def _required(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        status, body = await self._get(path, max_bytes=max_bytes)
        if status != 200:
            raise ProbeError(f"{self.url}{path} answered {self._shown(status, body)}")
        return body

    def _shown(self, status: int, body: bytes) -> str:
        """Describe an answer that is no success, with the target of a redirect, or advice."""
        if is_redirect(status):
            return body.decode()
        if status == 404 and self.url.endswith("/v1"):  # clients' base URL
            return f"{status}; give the worker's address without /v1"
        return f"{status}; give the worker's key with --worker-key-file" if status == 401 else f"{status}"

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
        """GET a path. The key of workers goes to workers only, not to `url`. The body of a redirect is its
        description."""
        headers, progress = {**({} if url else self._headers), **(more or {})}, CallProgress()
        options: dict[str, Any] = {"headers": headers, "trace_request_ctx": progress}
        if self._timeout_s is not None:
            options["timeout"] = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with self._session.call("GET", url or self.url, path, **options) as answer:
                self.num_answers += not url
                status, body = answer.status, await read_all(answer, max_bytes)
                if is_redirect(status):
                    received = ((name.lower(), value) for name, value in answer.raw_headers)
                    body = redirect_of(status, received).encode()
        except TimeoutError as exc:
            text = f"{url or self.url}{path} did not answer in time"
            raise ProbeTimeout(text, is_accepted=progress.is_accepted) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            kind = ProbeTimeout if getattr(exc, "errno", None) in UNREACHABLE else ProbeError
            raise kind(f"{url or self.url}{path}: {failure(exc)}") from exc
        if max_bytes != MAX_PAGE_BYTES and body.count(b"{") > MAX_OBJECTS:
            raise ProbeError(f"{url or self.url}{path} answered with more than {MAX_OBJECTS:,} objects")
        return status, body
