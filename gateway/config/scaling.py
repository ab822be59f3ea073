"""Table `[scaling]`: advice for autoscalers."""

from typing import Annotated

from gateway.config.options import Section, option


class ScalingSection(Section, frozen=True):
    port: Annotated[
        int,
        option(
            "Port of the external scaler for KEDA (gRPC, plain and TLS with the picker's certificate), at "
            "the address for clients. It needs processes = 1. 0: none.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    ttft_objective_s: Annotated[
        float,
        option(
            "TTFT objective for 90 % of the requests; the advised numbers of workers are those that meet it.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 2.0
    itl_objective_s: Annotated[
        float,
        option(
            "ITL objective for 90 % of the answers, each by the mean over its tokens; the advised numbers of "
            "workers, and of prefill and decode workers, are those that meet it.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 0.1
    down_after_s: Annotated[
        float,
        option(
            "Time of lower demand after which fewer workers are advised; the number falls at most once in "
            "it.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 300.0
