"""Interface of a worker's event feed, from its engine, its agent, or another gateway through Redis."""

from typing import Protocol


class Feed(Protocol):
    """Running feed of a worker's events. Its source may change meanwhile."""

    @property
    def endpoint(self) -> str: ...

    @property
    def replay_endpoint(self) -> str | None: ...

    @property
    def is_connected(self) -> bool: ...

    def stop(self) -> None: ...
