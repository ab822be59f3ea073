"""Detection of an endpoint's engine: as configured, else by its own answers. Pure.

Every engine answers `/v1/models`, where most name themselves as the owner of their models; names of metrics
identify it where a proxy, or the operator, changed that. All others count as OpenAI-compatible.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.engine import Engine
from gateway.core.errors import ConfigError
from gateway.core.spelling import meant
from gateway.discovery.probed import endpoint_url

MODELS, METRICS, HEALTH = "/v1/models", ("/metrics", "/prometheus/metrics"), "/health"
"""Paths that are requested before the engine is known."""


class _Card(msgspec.Struct):
    owned_by: str | None | msgspec.UnsetType = msgspec.UNSET
    created: object = None


class _Models(msgspec.Struct):
    data: list[_Card]


_models = msgspec.json.Decoder(_Models).decode


class Engines:
    """Known engines; the last one is used if no other's marks are found.

    `declared` are "NAME" for all endpoints or "URL=NAME" for one. Raises ConfigError.
    """

    def __init__(self, table: Mapping[str, Engine], declared: Sequence[str] = ()) -> None:
        self._table = dict(table)
        self._default: Engine | None = None
        self._by_url: dict[str, Engine] = {}
        for spec in declared:
            url, _, name = spec.rpartition("=")
            if name not in self._table:
                words = meant(name, self._table) or f"; known: {', '.join(self._table)}"
                raise ConfigError(f"engine: unknown engine '{name}'{words}")
            if url:
                self._by_url[_endpoint(url)] = self._table[name]
            else:
                self._default = self._table[name]

    def __repr__(self) -> str:
        return f"Engines({', '.join(self._table)})"

    def inherit(self, url: str, source: str) -> None:
        """Copy a source's engine to one of its addresses."""
        if source in self._by_url:
            self._by_url[url] = self._by_url[source]

    def named(self, name: str) -> Engine:
        return self._table[name]

    def configured(self, url: str) -> Engine | None:
        return self._by_url.get(url, self._default)

    def by_models(self, body: bytes) -> Engine | None:
        """Return the engine that owns the listed models; None if unknown."""
        try:
            cards = _models(body).data
        except UNREADABLE:
            return None
        owners = {card.owned_by for card in cards}
        for engine in self._table.values():
            if engine.marks.owned_by and engine.marks.owned_by in owners:
                return engine
        if owners == {msgspec.UNSET} and all(card.created is not None for card in cards):
            return next((e for e in self._table.values() if e.marks.has_no_owner), None)
        return None

    def by_metrics(self, page: bytes) -> Engine | None:
        """Return the engine by the prefix of its metrics' names; None if unknown."""
        for engine in self._table.values():
            mark = engine.marks.metrics.encode()
            if mark and (page.startswith(mark) or b"\n" + mark in page):
                return engine
        return None

    @property
    def other(self) -> Engine:
        """Engine for endpoints without the marks of any other."""
        return list(self._table.values())[-1]


def _endpoint(url: str) -> str:
    try:
        return endpoint_url(url)
    except ValueError as exc:
        raise ConfigError(f"engine: {exc}") from exc
