"""All that is told of requests in one process, put together."""

from collections.abc import Callable

from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.observability.log_setup import LogCollector, request_teller
from gateway.observability.log_sink import Sink
from gateway.observability.otlp import Traces, otlp_exporter
from gateway.observability.request_end import Teller


class Telling:
    """`tellers` are told of each request that has ended; the proxy and the API have the same list."""

    def __init__(
        self, config: Config, sink: Sink | None, trusts: Callable[[str | None], bool] = lambda peer: False
    ) -> None:
        """`sink` takes lines of the log; without one lines of requests are messages. `trusts` says whose
        traces are followed. Raises ConfigError."""
        self.tellers: list[Teller] = []
        self.collectors: list[Collector] = [LogCollector(sink)] if sink else []
        self.traces: Traces | None = None
        if config.otlp_endpoint:
            exporter = otlp_exporter(config.otlp_endpoint)
            self.traces = Traces(exporter, trusts, config.trace_sample_ratio)
            self.tellers.append(self.traces.ended)
            self.collectors.append(self.traces)
        self._lines = request_teller(config.log_format, sink)
        self.take(config)

    def close(self) -> None:
        if self.traces is not None:
            self.traces.close()

    def take(self, config: Config) -> None:
        """Whether requests are logged, from now on."""
        if config.log_requests and self._lines not in self.tellers:
            self.tellers.append(self._lines)
        elif not config.log_requests and self._lines in self.tellers:
            self.tellers.remove(self._lines)
