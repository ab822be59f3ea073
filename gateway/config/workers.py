"""The options of how workers come, warm up, are left out and go; all are fields of `Config`."""

from typing import Annotated

from gateway.config.reaching import Reaching
from gateway.options import option


class Workers(Reaching, frozen=True, kw_only=True, forbid_unknown_fields=True):
    warm_up_s: Annotated[
        float,
        option(
            "How long a worker that joins a running fleet, or comes back to it, gets less than its fair "
            "share of requests: a tenth at first, then more and more. Its cache is empty, and an idle worker "
            "would get all that comes. 0: no warm-up.",
            "seconds",
            ge=0,
        ),
    ] = 10.0
    eject_after_failures: Annotated[
        int,
        option(
            "Requests in a row that a worker fails (it refuses, closes, cuts, or answers 5xx) until it gets "
            "none for a while, though its probes are well. Never the last one of a model. 0: never.",
            "requests",
            ge=0,
        ),
    ] = 5
    eject_s: Annotated[
        float,
        option(
            "For how long then; twice as long each time that it fails again when it is let in, at most 5 "
            "minutes.",
            "seconds",
            gt=0,
        ),
    ] = 10.0
    stalled_after_s: Annotated[
        float,
        option(
            "A worker whose probes are well is left out when its engine has made no step for so long though "
            "requests are there, and what waits there goes elsewhere; it is let in again when steps move. By "
            "the counters of its /metrics: of vLLM. 0: never.",
            "seconds",
            ge=0,
        ),
    ] = 60.0
