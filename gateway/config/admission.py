"""Tables `[queue]` and `[headers]`: admission control, and the request headers that kvgate reads and adds."""

from typing import Annotated

import msgspec

from gateway.config.options import REQUESTS, Section, option
from gateway.http.networks import check_peers

HEADER = "^[A-Za-z0-9_-]{1,64}$"
TOKEN = "^[A-Za-z0-9!#$%&'*+.^_`|~-]*$"


class QueueSection(Section, frozen=True):
    above_ttft_s: Annotated[
        float,
        option(
            "Predicted TTFT above which requests queue in the gateway, by priority and fairly between "
            "tenants, while every worker of their model exceeds it. 0: never; engines then queue by "
            "themselves, first come, first served.",
            "seconds",
            ge=0,
            live=REQUESTS,
        ),
    ] = 0.0
    above_in_flight: Annotated[
        int,
        option(
            "Requests in flight per worker above which requests queue in the gateway, counting those of all "
            "gateways that share their load; about the engine's own limit (vLLM: --max-num-seqs). 0: no "
            "limit.",
            "requests",
            ge=0,
            live=REQUESTS,
        ),
    ] = 0
    max_requests: Annotated[
        int,
        option(
            "Length limit of a model's queue; beyond it the newest request of the longest queue of the last "
            "priority is rejected with 429. Each queued request keeps its connection, body and tokens.",
            "requests",
            ge=1,
            live=REQUESTS,
        ),
    ] = 1000
    timeout_s: Annotated[
        float,
        option(
            "Longest wait in the queue; then 429. Choose less than clients wait for a first byte: OpenAI's "
            "clients wait 10 minutes, load balancers 60 s.",
            "seconds",
            gt=0,
            live=REQUESTS,
        ),
    ] = 50.0


class HeadersSection(Section, frozen=True):
    session_header: Annotated[
        str,
        option(
            "Request header that names the session, for policies that keep sessions together and for A/B "
            "tests; goes before the cookie and the field `user`. Empty: none.",
            "name",
            pattern=TOKEN,
            live=REQUESTS,
        ),
    ] = "x-session-id"
    session_cookie: Annotated[
        str,
        option(
            "Cookie that names the session, as the application sets it. Empty: none.",
            "name",
            pattern=TOKEN,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = ""
    trust_headers_from: Annotated[
        list[str],
        option(
            "Network or address of peers that may set tenant, priority and SLO headers, as in 10.0.0.0/8, or "
            "'unix' for the gateway's Unix socket. By default no peer may, not even loopback: behind a proxy "
            "on this host every client connects from there.",
            "network",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=list)
    tenant_header: Annotated[
        str,
        option(
            "Request header that names the tenant; without it, requests with the same API key are one "
            "tenant's.",
            "name",
            pattern=HEADER,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = "x-kvgate-tenant"
    priority_header: Annotated[
        str,
        option(
            "Request header with the priority, lower goes first, as in vLLM; overrides the body's.",
            "name",
            pattern=HEADER,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = "x-kvgate-priority"
    slo_header: Annotated[
        str,
        option(
            "Request header with the TTFT objective in milliseconds: a request that is predicted to miss it "
            "is rejected with 429 at once.",
            "name",
            pattern=HEADER,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = "x-kvgate-slo-ttft-ms"
    expose_headers: Annotated[
        bool,
        option(
            "Add x-kvgate-worker, -overlap-tokens and -decision to answers. Off by default: they reveal to a "
            "tenant what others have cached.",
            live=REQUESTS,
        ),
    ] = False

    def __post_init__(self) -> None:
        check_peers("trust_headers_from", self.trust_headers_from)
