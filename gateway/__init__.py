"""kvgate: a KV-aware gateway in front of LLM inference fleets.

    core/       pure: tokens, block hashes, streams, requests, decisions; no I/O
    index/      what each worker holds         policies/   who gets a request
    ingest/     KV events into the index       discovery/  who is in the fleet
    doors/      where clients come in: sockets, TLS, proxies before us, upgrades without a lost connection
    server      one connection                 api         the OpenAI surface
    keys/       who may ask                    flow/       who is let in, who goes first
    adapters/   loaded and unloaded by an operator
    models/     whose prompts are tokenized here, and with what    renderers/  how a family's are made
    router      the decision, one call         proxy, exchange   one request to a worker and back
    splits/     prefill there, decode here     responses, tunnel   requests that are kept, WebSockets
    upstream    connections to workers         control     probes and other calls to workers
    ways        how each is reached            fleet_admin  /admin/workers
    verify/     was it right, and why not      agreement   our tokens and a worker's
    trials/     how policies do, side by side  preview     a request that is not sent
    choosing    the policy in use              loss/       why what was cached is computed again
    redis/      what several gateways share    bookings/   what others have in flight
    radix/      the index in Redis itself      others      asked there before a decision
    agent/      the sidecar beside a worker    proto/      its contract, generated
    telling/    the log, lines of requests, traces    admin    /metrics, /admin
    config/     every option                   reloading/  another configuration
    app/        puts it together               processes/  several behind one port
    serving     start and stop                 commands/   what `kvgate` can do beside serving
    cli         arguments -> Config -> app     library     `connect`, for programs
    replay/     all that in virtual time, before simulated engines

As a library: `async with gateway.connect(["http://10.0.0.1:8000"]) as router:`
`    decision = router.decide(gateway.request("/v1/completions", {"model": "m", "prompt": "..."}))`
`    ...; router.finish(decision)`
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.decision import Decision
from gateway.core.request import InferenceRequest, parse_request
from gateway.router import Router
from gateway.router import __file__ as _router_file

__version__ = "0.1.0"
is_compiled = not (_router_file or "").endswith(".py")
"""Whether the data path runs as machine code, as in the wheel, or as the Python that it is; see setup.py."""
__all__ = ["Decision", "InferenceRequest", "Router", "connect", "request"]


def request(path: str, body: Mapping[str, Any] | bytes) -> InferenceRequest:
    """A request as the server would have parsed it. Raises `core.errors.InvalidRequest`."""
    return parse_request(path, body if isinstance(body, bytes) else msgspec.json.encode(body))


def __getattr__(name: str) -> Any:
    """`connect` needs the whole gateway; importing the core alone stays light."""
    if name == "connect":
        from gateway.library import connect

        return connect
    raise AttributeError(f"module 'gateway' has no attribute '{name}'")
