"""kvgate as a library: `async with kvgate.connect(["http://10.0.0.1:8000"]) as router: ...`."""

from typing import TYPE_CHECKING, Any

from gateway import Decision, InferenceRequest, Router, __version__, request
from gateway.library import connect

if TYPE_CHECKING:
    from gateway.decide.client import DecideClient, RemoteDecision, RequestQueued, RequestRejected

__all__ = [
    "DecideClient",
    "Decision",
    "InferenceRequest",
    "RemoteDecision",
    "RequestQueued",
    "RequestRejected",
    "Router",
    "__version__",
    "connect",
    "request",
]


def __getattr__(name: str) -> Any:
    """The client of the decision service needs gRPC, which takes a while to import."""
    if name in __all__:
        from gateway.decide import client

        return getattr(client, name)
    raise AttributeError(f"module 'kvgate' has no attribute '{name}'")
