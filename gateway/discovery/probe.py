"""Asks an endpoint: what it serves, whether it is up, how loaded it is."""

from collections.abc import Mapping

import aiohttp

from gateway.control import ControlSession, failure
from gateway.core.engine import Engine, EngineMetrics
from gateway.core.events import DecodeError
from gateway.discovery.facts import Facts

MAX_ANSWER_BYTES = 8 << 20


class ProbeError(Exception):
    """An endpoint that does not answer as an engine does: says which path and how."""


class Probe:
    """Control calls to one endpoint. `headers` go with each, such as an Authorization."""

    def __init__(self, url: str, engine: Engine, session: ControlSession, headers: Mapping[str, str]) -> None:
        self.url = url
        self._engine = engine
        self._session = session
        self._headers = headers

    async def facts(self) -> Facts:
        """Everything the endpoint tells of itself. Raises ProbeError."""
        paths = self._engine.paths
        models = await self._required(paths.models)
        try:
            parsed = self._engine.parse_models(models)
        except DecodeError as exc:
            raise ProbeError(f"{self.url}{paths.models}: {exc}") from exc
        ranks = await self.metrics()
        sources = await self._optional(paths.event_sources)
        version = await self._optional(paths.version)
        try:
            return Facts(
                url=self.url,
                engine=self._engine.name,
                models=parsed,
                ranks=ranks,
                sources=self._engine.parse_event_sources(sources) if sources else None,
                version=self._engine.parse_version(version) if version else None,
            )
        except DecodeError as exc:
            raise ProbeError(f"{self.url}: {exc}") from exc

    async def check_health(self) -> None:
        """Raises ProbeError where the endpoint does not take requests."""
        await self._required(self._engine.paths.health)

    async def metrics(self) -> dict[int, EngineMetrics]:
        """Per rank; empty where the endpoint has no metrics."""
        body = await self._optional(self._engine.paths.metrics)
        return self._engine.parse_metrics(body.decode("utf-8", "replace")) if body else {}

    async def _required(self, path: str) -> bytes:
        status, body = await self._get(path)
        if status != 200:
            raise ProbeError(f"{self.url}{path} answered {status}")
        return body

    async def _optional(self, path: str | None) -> bytes | None:
        if path is None:
            return None
        status, body = await self._get(path)
        return body if status == 200 else None

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with self._session.call("GET", self.url, path, headers=self._headers) as answer:
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ProbeError(f"{self.url}{path}: the answer is over {MAX_ANSWER_BYTES} bytes")
                return answer.status, bytes(body)
        except TimeoutError as exc:
            raise ProbeError(f"{self.url}{path} did not answer in time") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ProbeError(f"{self.url}{path}: {failure(exc)}") from exc
