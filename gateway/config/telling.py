"""The options of what is told of requests; all are fields of `Config`."""

from typing import Annotated, Literal

from gateway.config.keys import Keyed
from gateway.options import option


class Telling(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_format: Annotated[
        Literal["auto", "json", "text"],
        option(
            "How the log looks. json: each line is an object, for machines. text: all of it for people. "
            "auto: the lines of --log-requests are JSON, the program's own messages text."
        ),
    ] = "auto"
    log_requests: Annotated[
        bool,
        option(
            "Log a line per request, refused ones too: ids, tenant, model, worker, tokens, times, status, "
            "who made the error (docs/operating.md). Never the prompt."
        ),
    ] = False
