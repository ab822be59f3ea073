"""Telemetry of requests in one process: the access log and the traces, as configured."""

from collections.abc import Callable

from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.observability.log_setup import LogCollector, request_teller
from gateway.observability.log_sink import Sink
from gateway.observability.otlp import Traces, otlp_exporter
from gateway.observability.request_end import Teller


class Telling:
    """The access log and traces of one process. `tellers` are called for each request that has ended; the
    proxy and the API share this list."""

    def __init__(
        self, config: Config, sink: Sink | None, trusts: Callable[[str | None], bool] = lambda peer: False
    ) -> None:
        """Without a `sink`, access log lines are logged as messages. `trusts` decides by a peer's address
        whether its traces are continued. Raises ConfigError."""
        self.tellers: list[Teller] = []
        self.collectors: list[Collector] = [LogCollector(sink)] if sink else []
        self.traces: Traces | None = None
        if config.otlp.endpoint:
            exporter = otlp_exporter(config.otlp.endpoint)
            self.traces = Traces(exporter, trusts, config.otlp.sample_ratio)
            self.tellers.append(self.traces.ended)
            self.collectors.append(self.traces)
        self._lines = request_teller(config.log.format, sink)
        self.take(config)

    def close(self) -> None:
        if self.traces is not None:
            self.traces.close()

    def take(self, config: Config) -> None:
        """Turn the access log on or off, as a reloaded configuration says."""
        if config.log.requests and self._lines not in self.tellers:
            self.tellers.append(self._lines)
        elif not config.log.requests and self._lines in self.tellers:
            self.tellers.remove(self._lines)
