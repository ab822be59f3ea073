"""Access log, traces and log level of one process."""

import logging
from collections.abc import Sequence

from prometheus_client.registry import Collector

from gateway.app.component import Component, ConfigChange, Swap
from gateway.config import Config
from gateway.observability import log_setup, otlp
from gateway.observability.log_sink import LogSink
from gateway.observability.telemetry import Telemetry
from gateway.tenancy.admission.request_identity import trusted_peers


class TelemetryPart(Component):
    metric_sections = (("Log and traces", (*log_setup.METRICS, *otlp.METRICS)),)

    def __init__(self, config: Config, sink: LogSink | None) -> None:
        self.telemetry = Telemetry(config, sink, trusted_peers(config).trusts)

    async def stop(self) -> None:
        self.telemetry.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        trusted, config, telemetry = trusted_peers(change.config), change.config, self.telemetry

        def swap() -> None:
            telemetry.take(config)
            if telemetry.traces is not None:
                telemetry.traces.trusts = trusted.trusts
            logging.getLogger().setLevel(config.log.level.upper())

        return swap

    def collectors(self) -> Sequence[Collector]:
        return self.telemetry.collectors
