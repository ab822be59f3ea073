"""kvgate: a KV-aware gateway in front of LLM inference fleets.

Folders from the top down; imports go down only (`pyproject.toml` has the tiers):

    cli, library     the `kvgate` command; `connect`, for programs
    commands/        serve, check, engine, demo, explain, index, policy, key, lora, status
    demo/            a simulated fleet and its twin behind round robin
    processes/       several processes behind one port      replay/         all that in virtual time
    app/             the composition root
    admin/           the admin port's endpoints
    decide/          the decision service over gRPC         scaling/        advice for autoscalers
    epp/             the endpoint picker for Envoy
    proxy/           one request, there and back            agent/          the sidecar beside an engine
    engine_test/     the conformance test of an engine
    disaggregation/  prefill and decode on two workers
    discovery/       the fleet's workers                    tenancy/        authentication, admission
    routing/         the decision, and what is learnt       models/         tokenizers of served models
    replication/     KV state by agents and Redis           bookings/       load that gateways share
    ingest/          KV events into the index               observability/  log, metrics, verification
    parity/          kvgate's prompt tokens and the engines'
    index/           what each worker holds
    server/          connections of clients                 upstream/       connections to workers
    redis/           connections to Redis
    config/          every option
    apis/            the dialects that clients speak
    requests/        bodies as requests                     policies/       choices of a worker
    http/            HTTP as values                         tokenization/   prompts as tokens
    costs/           what a choice costs                    runtime/        the process
    core/            the types that all share               proto/          contracts of agents and services

As a library: `async with gateway.connect(["http://10.0.0.1:8000"]) as router:`
`    decision = router.decide(gateway.request("/v1/completions", {"model": "m", "prompt": "..."}))`
`    ...; router.finish(decision)`
"""

from collections.abc import Mapping
from typing import Any

from gateway.core.decision import Decision
from gateway.core.json_values import encode
from gateway.core.request import InferenceRequest
from gateway.requests.parsing import parse_request
from gateway.routing.router import Router
from gateway.runtime.build import VERSION, is_compiled

__version__ = VERSION
__all__ = ["Decision", "InferenceRequest", "Router", "connect", "is_compiled", "request"]


def request(path: str, body: Mapping[str, Any] | bytes) -> InferenceRequest:
    """A request as the server would have parsed it. Raises `core.errors.InvalidRequest`."""
    return parse_request(path, body if isinstance(body, bytes) else encode(body))


def __getattr__(name: str) -> Any:
    """Import `connect`, which needs the whole gateway, on first use: importing the core alone stays light."""
    if name == "connect":
        from gateway.library import connect

        return connect
    raise AttributeError(f"module 'gateway' has no attribute '{name}'")
