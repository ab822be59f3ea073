"""What reads a worker's events, whoever tells them: its engine, its agent, or another gateway by Redis."""

from typing import Protocol


class Feed(Protocol):
    """Running until it is stopped. Where its events come from may change meanwhile."""

    @property
    def endpoint(self) -> str: ...

    @property
    def replay_endpoint(self) -> str | None: ...

    @property
    def is_connected(self) -> bool: ...

    def stop(self) -> None: ...
