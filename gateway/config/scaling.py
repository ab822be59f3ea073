"""Table `[scaling]`: advice for autoscalers."""

from typing import Annotated

from gateway.config.options import Section, option


class ScalingSection(Section, frozen=True):
    port: Annotated[
        int,
        option(
            "Port of the external scaler for KEDA (gRPC, plain and TLS with the picker's certificate), at "
            "the address for clients. Serves one process: metrics of several are added up. 0: none.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    ttft_objective_s: Annotated[
        float,
        option(
            "Time to first token that nine of ten requests are to meet: the advised numbers of workers are "
            "for this.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 2.0
    down_after_s: Annotated[
        float,
        option(
            "Time for which nothing has needed a worker before fewer are advised, and at most one fall in "
            "that time.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 300.0
