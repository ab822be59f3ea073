"""LoRA adapters that are loaded and unloaded through the admin API."""

from collections.abc import Mapping

from aiohttp.typedefs import Handler

from gateway.admin.lora import AdapterAdmin
from gateway.app.component import Component
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.config import Config
from gateway.core.fleet import Fleet
from gateway.discovery.lora_loading import AdapterLoader
from gateway.discovery.roster import Roster


class AdaptersPart(Component):
    def __init__(self, config: Config, fleet: Fleet, roster: Roster, workers: WorkerAccessPart) -> None:
        timeout_s = config.admin.adapter_timeout_s
        named = workers.engines.named
        loading = AdapterLoader(fleet, roster, named, workers.session, workers.headers, timeout_s)
        self._admin = AdapterAdmin(loading, is_on=config.admin.load_adapters)

    def admin_handlers(self) -> Mapping[str, Handler]:
        return self._admin.handlers()
