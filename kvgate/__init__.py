"""kvgate for programs: the router as a library, the client of a running gateway, and the types of policies.

As a library: `async with kvgate.connect(["http://10.0.0.1:8000"]) as router:`
`    decision = router.decide(kvgate.request("/v1/completions", {"model": "m", "prompt": "..."}))`
`    ...; router.finish(decision)`

testing     the contract of policies, for the tests of those who write one
__main__    `python -m kvgate`, the command

All else that an installation has is internal (`kvgate.gateway`, `kvgate.engines`) and may change.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway import InferenceRequest, __version__, request
    from gateway.core.decision import Candidate, Choice, Decision, Query
    from gateway.core.errors import (
        ConfigError,
        ContextTooLong,
        GatewayError,
        InvalidRequest,
        NoWorker,
        UnknownModel,
    )
    from gateway.decide.client import DecideClient, RemoteDecision, RequestQueued, RequestRejected
    from gateway.library import connect
    from gateway.policies.base import Filter, Picker, Policy, Scorer, pick_lowest
    from gateway.routing.router import Router

__all__ = [
    "Candidate",
    "Choice",
    "ConfigError",
    "ContextTooLong",
    "DecideClient",
    "Decision",
    "Filter",
    "GatewayError",
    "InferenceRequest",
    "InvalidRequest",
    "NoWorker",
    "Picker",
    "Policy",
    "Query",
    "RemoteDecision",
    "RequestQueued",
    "RequestRejected",
    "Router",
    "Scorer",
    "UnknownModel",
    "__version__",
    "connect",
    "pick_lowest",
    "request",
]

_OF_CLIENTS = ("DecideClient", "RemoteDecision", "RequestQueued", "RequestRejected")
_OF_POLICIES = ("Candidate", "Choice", "Filter", "Picker", "Policy", "Query", "Scorer", "pick_lowest")
_ERRORS = ("ConfigError", "ContextTooLong", "GatewayError", "InvalidRequest", "NoWorker", "UnknownModel")

if not TYPE_CHECKING:  # a type checker shall find names that do not exist

    def __getattr__(name: str) -> Any:
        """Import what is asked for on first use: a policy needs little, the library all, a client gRPC."""
        if name not in __all__:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        if name in _OF_CLIENTS:
            from gateway.decide import client as home
        elif name in _OF_POLICIES:
            from gateway.policies import base as home
        elif name in _ERRORS:
            from gateway.core import errors as home
        elif name in ("Decision", "Router", "connect"):
            from gateway import library as home
        else:
            import gateway as home
        globals()[name] = value = getattr(home, name)
        return value
