"""All that is told of requests in one process, put together."""

from collections.abc import Sequence

from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.telling.end import Teller
from gateway.telling.logs import LogCollector, request_teller
from gateway.telling.sink import Sink


class Telling:
    """`tellers` are told of each request that has ended; the proxy and the API have the same list."""

    def __init__(self, config: Config, sink: Sink | None) -> None:
        """`sink` takes lines of the log; without one lines of requests are messages."""
        self.tellers: list[Teller] = []
        self.collectors: Sequence[Collector] = [LogCollector(sink)] if sink else []
        self._lines = request_teller(config.log_format, sink)
        self.take(config)

    def take(self, config: Config) -> None:
        """Whether requests are logged, from now on."""
        if config.log_requests and self._lines not in self.tellers:
            self.tellers.append(self._lines)
        elif not config.log_requests and self._lines in self.tellers:
            self.tellers.remove(self._lines)
