"""The options of what is told of requests; all are fields of `Config`."""

from typing import Annotated, Literal

from gateway.config.auth import Keyed
from gateway.config.options import option
from gateway.http.url import Url


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
            "who made the error (docs/operations/operating.md). Never the prompt."
        ),
    ] = False
    otlp_endpoint: Annotated[
        str,
        option(
            "Where traces are sent, by OTLP over HTTP, as in http://127.0.0.1:4318/v1/traces; needs "
            "kvgate[otel]. Names and numbers, never content. Further settings of the exporter (headers, "
            "certificates) are OTEL_EXPORTER_OTLP_... in the environment. Empty: none are made.",
            "URL",
            pattern="^(https?://.+)?$",
        ),
    ] = ""
    trace_sample_ratio: Annotated[
        float,
        option(
            "Share of the traces that begin here that are sent. Traces of clients that are trusted "
            "(--trust-headers-from) are followed, and sampled as they say; others' are linked to.",
            "share",
            ge=0,
            le=1,
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.otlp_endpoint:
            try:
                Url.of(self.otlp_endpoint)
            except ValueError as exc:
                raise ValueError(f"otlp_endpoint: {exc}") from exc
