"""Table `[proxy]`: one request to a worker, with its timeouts, retries and routes."""

from typing import Annotated, Literal

import msgspec

from gateway.apis.open_routes import Routes
from gateway.config.options import REQUESTS, Section, option


class ProxySection(Section, frozen=True):
    connect_timeout_s: Annotated[
        float,
        option(
            "Timeout of a connection to a worker; then another worker is tried.",
            "seconds",
            gt=0,
            live=REQUESTS,
        ),
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float,
        option(
            "Timeout of the first byte of an answer. 0: none, since long prompts and queues take minutes.",
            "seconds",
            ge=0,
            live=REQUESTS,
        ),
    ] = 0.0
    idle_timeout_s: Annotated[
        float,
        option(
            "Timeout between two pieces of an answer; a stream may run for hours as long as it moves. 0: "
            "none.",
            "seconds",
            ge=0,
            live=REQUESTS,
        ),
    ] = 600.0
    total_timeout_s: Annotated[
        float,
        option(
            "Timeout of a whole answer. 0: none, since streams of 30 minutes are normal.",
            "seconds",
            ge=0,
            live=REQUESTS,
        ),
    ] = 0.0
    stream_keepalive_s: Annotated[
        float,
        option(
            "Time without a byte after which a stream gets a comment, before the first token too, so that "
            "proxies and browsers do not close it; less than their read timeout (often 60 s). The head then "
            "goes out first, and a later error comes as an event, which SDKs do not retry. 0: none.",
            "seconds",
            ge=0,
            live=REQUESTS,
        ),
    ] = 0.0
    pool_idle_s: Annotated[
        float,
        option(
            "Time for which an unused connection to a worker is kept; vLLM closes its end after 5 s.",
            "seconds",
            gt=0,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 4.0
    max_attempts: Annotated[
        int,
        option(
            "Limit on workers that a request is sent to, until one begins to answer: the first and the "
            "retries. Refused connections do not count.",
            "workers",
            ge=1,
            live=REQUESTS,
        ),
    ] = 2
    retry_share: Annotated[
        float,
        option(
            "Retry budget: largest share of the requests in flight that may be retries (ten are always "
            "allowed, for a quiet gateway); beyond it clients get 502. Without a limit, a half-dead fleet "
            "doubles the load of its other half. Refused connections do not count. 0: only these are "
            "retried.",
            "share",
            ge=0,
            le=1,
            live=REQUESTS,
            is_rare=True,
        ),
    ] = 0.2
    usage_injection: Annotated[
        Literal["off", "auto", "all"],
        option(
            "Request usage on streams without it, and strip it before the client sees it, so that "
            "predictions are verified against the engine's cached tokens. auto: for workers that are new or "
            "were mispredicted lately, else for one stream in 16, and only on engines that support it.",
            live=REQUESTS,
        ),
    ] = "auto"
    route: Annotated[
        list[str],
        option(
            "Additional route to pass on, to one worker of the model (from the body or ?model=): a path, or "
            "a method and a path, as in 'GET /load'; the default method is POST. Inference routes are open "
            "already; routes that change an engine for all its clients are not.",
            "route",
            live=REQUESTS,
        ),
    ] = msgspec.field(default_factory=list)
    close_route: Annotated[
        list[str],
        option("Inference route to close, as in /generate.", "route", live=REQUESTS),
    ] = msgspec.field(default_factory=list)
    response_key_file: Annotated[
        str,
        option(
            "File with a secret that keys the workers' names in ids of /v1/responses, the same for all "
            "gateways of a fleet: clients then cannot forge an id that leads to a chosen worker.",
            "path",
            is_rare=True,
        ),
    ] = ""
    allow_transfer_fields: Annotated[
        bool,
        option(
            "Pass on kv_transfer_params, ec_transfer_params, bootstrap_*, disaggregated_params and similar "
            "fields of clients that disaggregate requests themselves. They direct engines to other hosts, "
            "and can crash them.",
            live=REQUESTS,
        ),
    ] = False

    def __post_init__(self) -> None:
        try:
            Routes(self.route, self.close_route)
        except ValueError as exc:
            raise ValueError(f"route: {exc}") from exc
