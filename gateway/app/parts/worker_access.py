"""Access to workers: their declared settings, addresses, certificates and keys, and calls to them."""

from collections.abc import Sequence
from functools import partial

from engines import DEFAULT_CONNECTORS, ENGINES, KV_CONNECTORS
from gateway.app.component import Component, ConfigChange, Swap
from gateway.config import Config
from gateway.config.secrets import worker_headers
from gateway.config.worker_specs import parse_spec
from gateway.core.errors import ConfigError
from gateway.discovery.declared import declared_settings
from gateway.discovery.engine_detection import Engines
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.probed import worker_urls
from gateway.http.address import names_several
from gateway.http.kubernetes_url import KUBERNETES
from gateway.replication.agent_targets import agents_of
from gateway.runtime.tls import worker_tls
from gateway.upstream.access import fleet_access, with_tables
from gateway.upstream.control_client import ControlSession


class WorkerAccessPart(Component):
    """Settings of workers by URL, and the session of control calls.

    urls      configured workers, and names of several
    headers   those that go with each call
    tls       how workers are verified, and verify the gateway
    """

    def __init__(self, config: Config) -> None:
        """Read the settings. Raises ConfigError."""
        self._kubernetes = config.kubernetes
        tabled = with_tables(config)
        self.declared = declared_settings(tabled, KV_CONNECTORS, DEFAULT_CONNECTORS)
        self.urls = worker_urls([*tabled.fleet.worker, *self.declared.roles])
        self.access = fleet_access(tabled)
        self.check(self.urls)
        worker = tabled.worker
        self.tls = worker_tls(worker.ca_file, worker.cert_file, worker.cert_key_file)
        self.headers = worker_headers(worker.key_file)
        self.engines = Engines(ENGINES, tabled.fleet.engine)
        self.agents = agents_of(tabled)
        self.session = ControlSession(
            self.tls, timeout_s=config.lifecycle.probe_timeout_s, access=self.access
        )
        self.post = partial(self.session.post, headers=self.headers)

    def check(self, urls: Sequence[str]) -> None:
        """Check that workers may have these addresses. Raises ConfigError."""
        for url in urls:
            if url.startswith(KUBERNETES):
                cluster_access(self._kubernetes)
            elif not names_several(url) and (refusal := self.access.refusal(url)):
                raise ConfigError(f"worker: {url}: {refusal}")

    def inherit(self, url: str, source: str, host: str) -> None:
        """Copy the settings of a source to one of its workers, which is verified by the name `host`."""
        self.access.inherit(url, source, host if url.startswith("https:") else "")
        self.declared.inherit(url, source)
        self.engines.inherit(url, source)
        if source in self.agents.named:
            self.agents.named[url] = self.agents.named[source]

    async def stop(self) -> None:
        await self.session.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        self.check([parse_spec(spec)[0] for spec in change.added])
        declared_settings(change.config, KV_CONNECTORS, DEFAULT_CONNECTORS)
        return None
