"""The fleet that decisions read, and the counts of its requests."""

from engines import ENGINES
from gateway.app.component import Component
from gateway.config import Config
from gateway.config.models import aliases_of
from gateway.core.eligibility import Eligibility
from gateway.core.fleet import Fleet
from gateway.observability.metrics import Metrics


class FleetPart(Component):
    def __init__(self, config: Config) -> None:
        self.eligibility = Eligibility(ENGINES, needs_salt=bool(config.auth.tenant_salt_file))
        panic_percent = config.lifecycle.panic_threshold_percent
        self.fleet = Fleet(aliases_of(config.models), self.eligibility, panic_percent)
        self.metrics = Metrics(self.fleet.knows)
