"""Telemetry of requests in one process: the access log and the traces, as configured."""

from collections.abc import Callable

from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.observability.log_setup import LogCollector, access_log_of
from gateway.observability.log_sink import LogSink
from gateway.observability.otlp import Traces, otlp_exporter
from gateway.observability.request_end import OnEnd


class Telemetry:
    """The access log and traces of one process. `end_observers` are called for each request that has ended;
    the proxy and the API share this list."""

    def __init__(
        self, config: Config, sink: LogSink | None, trusts: Callable[[str | None], bool] = lambda peer: False
    ) -> None:
        """Without a `sink`, access log lines are logged as messages. `trusts` decides by a peer's address
        whether its traces are continued. Raises ConfigError."""
        self.end_observers: list[OnEnd] = []
        self.collectors: list[Collector] = [LogCollector(sink)] if sink else []
        self.traces: Traces | None = None
        if config.otlp.endpoint:
            exporter = otlp_exporter(config.otlp.endpoint)
            self.traces = Traces(exporter, trusts, config.otlp.sample_ratio)
            self.end_observers.append(self.traces.ended)
            self.collectors.append(self.traces)
        self._lines = access_log_of(config.log.format, sink)
        self.take(config)

    def close(self) -> None:
        if self.traces is not None:
            self.traces.close()

    def take(self, config: Config) -> None:
        """Turn the access log on or off, as a reloaded configuration says."""
        if config.log.requests and self._lines not in self.end_observers:
            self.end_observers.append(self._lines)
        elif not config.log.requests and self._lines in self.end_observers:
            self.end_observers.remove(self._lines)
