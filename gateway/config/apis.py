"""The options of what clients may ask for, how often it is tried, and how much of it is held; all are fields
of `Config`."""

from typing import Annotated

import msgspec

from gateway.apis.routes import Routes
from gateway.config.options import option
from gateway.config.upstream import Reaching


class Surface(Reaching, frozen=True, kw_only=True, forbid_unknown_fields=True):
    route: Annotated[
        list[str],
        option(
            "Pass this route on too, to one worker for the model (in the body or as ?model=): a path, or a "
            "method and a path, as in 'GET /load'; POST where none is said. Inference is open anyway; what "
            "changes an engine for all its clients is not.",
            "route",
        ),
    ] = msgspec.field(default_factory=list)
    refuse_route: Annotated[
        list[str],
        option("Do not pass this route on, though it is inference, as in /generate.", "route"),
    ] = msgspec.field(default_factory=list)
    response_key_file: Annotated[
        str,
        option(
            "File with a secret by which the workers' names in ids of /v1/responses are keyed, the same for "
            "all gateways before them: then nobody can make an id that leads to a worker of his choice.",
            "path",
        ),
    ] = ""
    retry_share: Annotated[
        float,
        option(
            "At most this share of the requests in flight are retries (but for ten, so that a quiet gateway "
            "has some); what is over is answered with 502. Without a bound half a dead fleet doubles "
            "the load of the other half. Refused connections are free. 0: no retries but after those.",
            ge=0,
            le=1,
        ),
    ] = 0.2
    max_bodies_bytes: Annotated[
        int,
        option(
            "Request bodies held at once by a process, until their workers begin to answer; then 503 with "
            "Retry-After, before memory is gone. Reading one takes about as much again.",
            "bytes",
            ge=1,
        ),
    ] = 1 << 30

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            Routes(self.route, self.refuse_route)
        except ValueError as exc:
            raise ValueError(f"route: {exc}") from exc
