"""Which engine an endpoint is: as it is configured, else as its own answers say. Pure.

Every engine answers `/v1/models`, where most name themselves as the owner of their models; names of
metrics tell where a proxy in between, or the operator, changed that. What is left speaks OpenAI.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.decoding import UNREADABLE
from gateway.core.engine import Engine
from gateway.core.errors import ConfigError
from gateway.discovery.probed import endpoint_url

MODELS, METRICS, HEALTH = "/v1/models", ("/metrics", "/prometheus/metrics"), "/health"
"""Paths that are asked before the engine is known."""


class _Card(msgspec.Struct):
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


_models = msgspec.json.Decoder(_Models).decode


class Engines:
    """The known engines; the last is taken where no other's marks are found.

    `said` are "NAME" for all endpoints or "URL=NAME" for one. Raises ConfigError.
    """

    def __init__(self, table: Mapping[str, Engine], said: Sequence[str] = ()) -> None:
        self._table = dict(table)
        self._default: Engine | None = None
        self._by_url: dict[str, Engine] = {}
        for spec in said:
            url, _, name = spec.rpartition("=")
            if name not in self._table:
                raise ConfigError(f"engine: '{name}' is no engine; known: {', '.join(self._table)}")
            if url:
                self._by_url[_endpoint(url)] = self._table[name]
            else:
                self._default = self._table[name]

    def __repr__(self) -> str:
        return f"Engines({', '.join(self._table)})"

    def inherit(self, url: str, source: str) -> None:
        """What is said of a name is said of each of its addresses."""
        if source in self._by_url:
            self._by_url[url] = self._by_url[source]

    def named(self, name: str) -> Engine:
        return self._table[name]

    def configured(self, url: str) -> Engine | None:
        return self._by_url.get(url, self._default)

    def by_models(self, body: bytes) -> Engine | None:
        """By who owns the models that it lists; None if that is nobody we know."""
        try:
            owners = {card.owned_by for card in _models(body).data}
        except UNREADABLE:
            return None
        return next(
            (e for e in self._table.values() if e.marks.owned_by and e.marks.owned_by in owners), None
        )

    def by_metrics(self, page: bytes) -> Engine | None:
        """By how the names of its metrics begin; None if none is known."""
        for engine in self._table.values():
            mark = engine.marks.metrics.encode()
            if mark and (page.startswith(mark) or b"\n" + mark in page):
                return engine
        return None

    @property
    def other(self) -> Engine:
        """The engine of whoever answers, and is none of those with marks."""
        return list(self._table.values())[-1]


def _endpoint(url: str) -> str:
    try:
        return endpoint_url(url)
    except ValueError as exc:
        raise ConfigError(f"engine: {exc}") from exc
