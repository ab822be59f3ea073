"""The gateway as a library: the server's own decision, for programs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.app import Gateway
from gateway.config import config_of
from gateway.core.decision import Decision
from gateway.routing.router import Router

__all__ = ["Decision", "Router", "connect"]


@asynccontextmanager
async def connect(workers: Sequence[str], **options: object) -> AsyncIterator[Router]:
    """A live router for programs: knows the fleet as the gateway does, listens to nothing.

    Every worker has been asked once when the block begins; one that did not answer joins when it does.
    `options` are named as flags are, as in `redis_timeout_s=2.0`. Leaves the block when the fleet is no
    longer needed. Raises ConfigError.
    """
    gateway = Gateway(config_of(worker=list(workers), **options))
    await gateway.start(serve=False)
    try:
        await gateway.roster.first_look()
        yield gateway.router
    finally:
        await gateway.stop()
