"""Certificates, read again when their files change."""

from collections.abc import Iterable

from gateway.app.component import Component
from gateway.observability.metrics import Metrics
from gateway.runtime.tasks import Tasks
from gateway.runtime.tls import Tls, follow


class CertificatesPart(Component):
    def __init__(self, certificates: Iterable[Tls | None], metrics: Metrics) -> None:
        self._followed = [tls for tls in certificates if tls and tls.files]
        self._metrics = metrics

    async def start(self, tasks: Tasks) -> None:
        tasks.start("follow certificates", follow(self._followed, self._metrics.tls_loads))
