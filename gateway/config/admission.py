"""The options of who is let in, and what waits before saturated workers; all are fields of `Config`."""

from typing import Annotated

import msgspec

from gateway.config.options import option
from gateway.config.policy import Choosing
from gateway.config.tenant_limits import Limits
from gateway.http.networks import check_peers

HEADER = "^[A-Za-z0-9_-]{1,64}$"


class Flow(Choosing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue_above_ttft_s: Annotated[
        float,
        option(
            "Requests wait here, by priority and fair between tenants, while every worker for their model "
            "has so much prompt work ahead that a first token would come later than this, as predicted. 0: "
            "never, as with a plain proxy: engines queue by themselves, first come, first served.",
            "seconds",
            ge=0,
        ),
    ] = 0.0
    max_in_flight_per_worker: Annotated[
        int,
        option(
            "Requests wait here while every worker for their model has this many in flight, of all gateways "
            "that tell each other; about the engine's own bound (vLLM: --max-num-seqs). 0: no bound.",
            "requests",
            ge=0,
        ),
    ] = 0
    max_queued: Annotated[
        int,
        option(
            "Requests that may wait for one model; then the longest line of the last priority gives way, or "
            "who comes is refused with 429. Each keeps its connection, body and tokens.",
            "requests",
            ge=1,
        ),
    ] = 1000
    queue_timeout_s: Annotated[
        float,
        option(
            "The longest wait; then 429. Less than clients wait for a first byte: those of OpenAI give 10 "
            "minutes, load balancers 60 s.",
            "seconds",
            gt=0,
        ),
    ] = 50.0
    trust_headers_from: Annotated[
        list[str],
        option(
            "Network or address of peers whose headers about tenant, priority and SLO are believed, as in "
            "10.0.0.0/8, or 'unix' for our Unix socket. Without it nobody's are, loopback's neither: behind "
            "a proxy on this host every client comes from there.",
            "network",
        ),
    ] = msgspec.field(default_factory=list)
    tenant_header: Annotated[
        str,
        option(
            "Header that names the tenant; without one, requests with the same API key are one.",
            "name",
            pattern=HEADER,
        ),
    ] = "x-kvgate-tenant"
    priority_header: Annotated[
        str,
        option(
            "Header with the priority, lower goes first, as in vLLM; goes before the body's.",
            "name",
            pattern=HEADER,
        ),
    ] = "x-kvgate-priority"
    slo_header: Annotated[
        str,
        option(
            "Header with the milliseconds within which the first token is wanted: what cannot have it is "
            "refused with 429, as early as that is predicted.",
            "name",
            pattern=HEADER,
        ),
    ] = "x-kvgate-slo-ttft-ms"
    tenants: Annotated[
        dict[str, Limits],
        option(
            'Tables [tenants.NAME], and [tenants."*"] for each that is not named: requests_per_s, '
            "requests_at_once, tokens_per_min, max_concurrent, weight, priority, slo_ttft_s; "
            "docs/guides/admission-control.md."
        ),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_peers("trust_headers_from", self.trust_headers_from)
