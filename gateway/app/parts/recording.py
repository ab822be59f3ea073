"""The recording of finished requests for `kvgate replay`."""

from gateway.app.component import Component
from gateway.config import Config
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.recorder import recorder_of


class RecordingPart(Component):
    def __init__(self, config: Config, metrics: Metrics, observers: Observers) -> None:
        """Make the file, where one is configured. Raises ConfigError."""
        self._recorder = recorder_of(config, metrics, observers)

    async def stop(self) -> None:
        self._recorder.close()
