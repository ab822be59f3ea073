"""Sources of workers: URLs that stand for workers to be looked up, in DNS or in Kubernetes."""

from collections.abc import Collection, Iterator
from typing import Protocol

from gateway.core.worker import Role
from gateway.discovery.dns import Resolver
from gateway.discovery.kubernetes.watched_sources import KubernetesSources
from gateway.http.kubernetes_url import KUBERNETES


class WorkerSource(Protocol):
    """URL that stands for workers; `members` are the URLs of its workers."""

    @property
    def url(self) -> str: ...
    @property
    def role(self) -> Role | None: ...
    @property
    def members(self) -> Collection[str]: ...
    @property
    def last_error(self) -> str | None: ...


class Sources:
    """All sources of a gateway."""

    def __init__(self, resolver: Resolver, kubernetes: KubernetesSources) -> None:
        self.resolver = resolver
        self.kubernetes = kubernetes

    def __repr__(self) -> str:
        return f"Sources({self.resolver}, {self.kubernetes})"

    def __iter__(self) -> Iterator[WorkerSource]:
        yield from list(self.resolver.names.values())
        yield from list(self.kubernetes.names.values())

    def add(self, url: str, role: Role | None = None) -> bool:
        """Start to look a source up; False if it is known already. Raises ConfigError."""
        is_kubernetes = url.startswith(KUBERNETES)
        return self.kubernetes.add(url, role) if is_kubernetes else self.resolver.add(url, role)

    def drop(self, url: str) -> bool:
        """Drop a source and its workers."""
        return self.resolver.drop(url) or self.kubernetes.drop(url)

    def is_member(self, url: str) -> bool:
        return self.resolver.is_member(url) or self.kubernetes.is_member(url)

    def refusal(self, url: str) -> str | None:
        """Explain why a source cannot be looked up here; None where it can."""
        return self.kubernetes.refusal() if url.startswith(KUBERNETES) else None

    async def have_looked(self) -> None:
        """Wait until each source has been looked up once."""
        await self.resolver.has_looked.wait()
        await self.kubernetes.have_listed()
