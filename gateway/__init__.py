"""kvgate: a KV-aware gateway in front of LLM inference fleets.

    core/       pure: tokens, block hashes, streams, requests, decisions; no I/O
    index/      what each worker holds         policies/   who gets a request
    ingest/     KV events into the index       discovery/  who is in the fleet
    ways        how each is reached            fleet_admin  /admin/workers
    behind      proxies before us              proxied      connections that they pass on
    models/     whose prompts are tokenized here, and with what    renderers/  how a family's are made
    verify/     was it right, and why not      agreement   our tokens and a worker's
    trials/     how policies do, side by side  preview     a request that is not sent
    router      the decision, one call         proxy       one request to a worker and back
    server      the listening side             upstream    connections to workers
    listening   sockets that are bound         tls         contexts that follow their files
    front       who comes in, and is seen off  sockets     all that a gateway listens at
    tunnel      WebSockets                     control     probes and other calls to workers
    api         the OpenAI surface             admin       /metrics, /admin
    app         puts it together               cli         arguments -> Config -> app
    choosing    the policy in use              library     `connect`, for programs
    loss/       why what was cached is computed again
    agent/      the sidecar beside a worker    proto/      its contract, generated
    serving     sockets, start, stop           handover    upgrades without a lost connection
    processes   several behind one port        child       one of them
    redis/      what several gateways share    bookings/   what others have in flight
    radix/      the index in Redis itself      others      asked there before a decision
    flow/       who is let in, who goes first   keys/      who may ask
    adapters/   loaded on workers, and unloaded
    survey      what lies there, for people    split_exchange  prefill there, decode here
    prefill     the other leg of it            splits      what became of them
    pairing     who can be two of a pair
    telling/    the log, lines of requests     reloading/  another configuration
    running     one process of several
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
