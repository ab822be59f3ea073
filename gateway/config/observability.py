"""Tables `[log]`, `[otlp]` and `[record]`: logs, traces and recordings of requests."""

from typing import Annotated, Literal

from gateway.config.options import AT_ONCE, Section, option
from gateway.http.url import Url


class LogSection(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        option("Least severe level logged to stderr.", live=AT_ONCE),
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "text"],
        option(
            "Format of the log. json: each line is an object. text: all of it for people. auto: JSON for the "
            "lines of --log-requests, text for the rest."
        ),
    ] = "auto"
    requests: Annotated[
        bool,
        option(
            "Log a line per request, rejected ones included: ids, tenant, model, worker, tokens, times, "
            "status, origin of an error (docs/operations/operating.md). Never the prompt.",
            live=AT_ONCE,
        ),
    ] = False


class OtlpSection(Section, frozen=True):
    endpoint: Annotated[
        str,
        option(
            "URL for traces, by OTLP over HTTP, as in http://127.0.0.1:4318/v1/traces; needs kvgate[otel]. "
            "Spans have names and numbers, never content. OTEL_EXPORTER_OTLP_... variables hold further "
            "settings (headers, certificates). Empty: no traces.",
            "URL",
            pattern="^(https?://.+)?$",
        ),
    ] = ""
    sample_ratio: Annotated[
        float,
        option(
            "Share of the traces that begin here and are sent. Traces of trusted clients "
            "(--trust-headers-from) are continued and sampled as they decide; others' are linked.",
            "share",
            ge=0,
            le=1,
            is_rare=True,
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        if self.endpoint:
            try:
                Url.of(self.endpoint)
            except ValueError as exc:
                raise ValueError(f"otlp_endpoint: {exc}") from exc


class RecordSection(Section, frozen=True):
    file: Annotated[
        str,
        option(
            "Append a line of JSON per finished request, for `kvgate replay`: time, worker, tokens, TTFT, "
            "and the prompt as hashes of its blocks. Requests usage on all streams.",
            "path",
            flag="record",
        ),
    ] = ""
    tokens: Annotated[
        bool,
        option("Record prompts' token ids too, from which anybody can restore the text.", is_rare=True),
    ] = False
    max_bytes: Annotated[
        int,
        option(
            "Size limit of the recording; further requests are counted only.", "bytes", ge=1, is_rare=True
        ),
    ] = 1 << 30
