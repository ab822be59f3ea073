"""Keys of clients and operators."""

from collections.abc import Mapping, Sequence

from aiohttp.typedefs import Handler
from prometheus_client.registry import Collector

from gateway.admin.auth import key_handlers
from gateway.app.component import Component, ConfigChange, Swap
from gateway.config import Config
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.tenancy.auth import credentials
from gateway.tenancy.auth import metrics as auth
from gateway.tenancy.auth.credentials import Credentials
from gateway.tenancy.auth.metrics import KeysCollector


class CredentialsPart(Component):
    """Keys, followed in their files; the cost of tenants' salts is counted for a router's decisions."""

    metric_sections = (("Authentication", auth.METRICS),)

    def __init__(self, config: Config, router: Router) -> None:
        """Read the files. Raises ConfigError."""
        self.credentials = Credentials(config)
        self._router = router

    async def start(self, tasks: Tasks) -> None:
        self.credentials.start(tasks, self._router)

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        credentials.check(change.config)
        return lambda: self.credentials.reconfigure(change.config)

    def collectors(self) -> Sequence[Collector]:
        return [KeysCollector(self.credentials)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return key_handlers(self.credentials)
