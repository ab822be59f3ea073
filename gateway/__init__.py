"""kvgate: a KV-aware gateway in front of LLM inference fleets.

Folders from the top down; imports go down only (`pyproject.toml` has the tiers):

    cli, library     the `kvgate` command; `connect`, for programs
    commands/        serve, check, config, completion, engine, demo, explain, index, policy, key, lora, status
    demo/            a simulated fleet and its twin behind round robin
    processes/       several processes behind one port      replay/         all that in virtual time
    app/             the composition root
    admin/           the admin port's endpoints
    decide/          the decision service over gRPC         scaling/        advice for autoscalers
    warming/         prefixes for workers that join         epp/            the endpoint picker for Envoy
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

The library is `kvgate` (`kvgate/__init__.py`).
"""

from collections.abc import Mapping
from typing import Any

from gateway.core.json_values import encode
from gateway.core.request import InferenceRequest
from gateway.requests.parsing import parse_request
from gateway.runtime.build import VERSION, is_compiled

__version__ = VERSION
__all__ = ["InferenceRequest", "__version__", "is_compiled", "request"]


def request(path: str, body: Mapping[str, Any] | bytes) -> InferenceRequest:
    """A request as the server would have parsed it. Raises `kvgate.InvalidRequest`."""
    return parse_request(path, body if isinstance(body, bytes) else encode(body))
