"""Composition of `kvgate agent`: probes and events of one engine in, a gRPC port out.

The roster is the gateway's own, with a fleet of one endpoint and a rank store in place of its index: the
engine is waited for, probed, and probed again when another process answers.
"""

import logging
import time
from ipaddress import ip_address
from typing import Any

from engines import ENGINES
from gateway.agent.config import AgentConfig, address_of
from gateway.agent.service import KvEvents, serve, server_credentials
from gateway.config.secrets import read_key
from gateway.core.block_limits import block_limits
from gateway.core.engine import EventSource
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.core.worker import Worker
from gateway.discovery.endpoint import EventSubscription
from gateway.discovery.engine_detection import Engines
from gateway.discovery.feeds import Feeds
from gateway.discovery.probe import Probe
from gateway.discovery.probed import endpoint_url
from gateway.discovery.roster import Roster, RosterOptions
from gateway.http.url import netloc_of
from gateway.index.assumed import AssumedIndex
from gateway.ingest.base import Feed
from gateway.observability.metrics import Metrics
from gateway.replication.messages import AgentHello
from gateway.replication.rank_store import RankState, RankStore, RankSubscription
from gateway.runtime.runnables import Runnable, start_all, stop_all
from gateway.runtime.tasks import Tasks, stop_event
from gateway.runtime.tls import worker_tls
from gateway.upstream.control_client import ControlSession

log = logging.getLogger("kvgate.agent")

STOP_GRACE_S = 0.2
"""Seconds for readers to learn that the agent stops; they go on elsewhere at once."""


class WatchedEngine(Runnable):
    """Probes and events of one engine, into a rank store."""

    def __init__(self, config: AgentConfig) -> None:
        """Read the settings. Raises ConfigError before anything is opened."""
        self.url = _engine_url(config.engine_url)
        self._config = config
        self._headers = _key_header(config.engine_key_file)
        self._engines = Engines(ENGINES, [config.engine] if config.engine else ())
        self.session = ControlSession(worker_tls(config.engine_ca_file), timeout_s=config.probe_timeout_s)
        self.fleet, self.assumed = Fleet(), AssumedIndex()
        self.store = RankStore(lambda: time.time_ns() // 1000)
        self._feeds: Feeds | None = None
        self.roster = Roster(
            fleet=self.fleet,
            index=self.store,
            assumed=self.assumed,
            metrics=Metrics(),
            make_probe=lambda url: Probe(url, self._engines, self.session, self._headers, config.events_port),
            open_feed=self._open_feed,
            on_gone=lambda url, workers: None,
            on_down=lambda worker, why: None,
            options=RosterOptions(
                probe_interval_s=config.probe_interval_s,
                events_port=config.events_port,
                replay_port=config.replay_port,
            ),
        )

    async def start(self, tasks: Tasks) -> None:
        offloaded = self._config.offload_blocks
        self._feeds = Feeds(
            engine_of=self._engines.named,
            index=self.store,
            assumed=self.assumed,
            headers=self._headers,
            tasks=tasks,
            subscribe=RankSubscription,
            limits_of=lambda worker: block_limits(worker.num_blocks, offloaded=offloaded),
        )
        self.roster.add(self.url)

    async def stop(self) -> None:
        await self.roster.stop()
        await self.session.close()
        if self._feeds is not None:
            self._feeds.close()

    def _open_feed(self, worker: Worker, source: EventSource) -> tuple[Feed, EventSubscription]:
        assert self._feeds is not None, "the roster opens feeds once it is started"
        on_state, on_size = self.roster.stream_changed, self.roster.block_size_shown
        feed, subscription = self._feeds.open(worker, source, self.session, on_state, None, on_size)
        log.info(
            "rank %d: events from %s, replays from %s", worker.dp_rank, feed.endpoint, feed.replay_endpoint
        )
        return feed, subscription


class AgentPort(Runnable):
    """gRPC port for gateways; `number` is there once it is open, and `server` serves it."""

    def __init__(self, config: AgentConfig, service: KvEvents, engine: str) -> None:
        """Read the certificates. Raises ConfigError before anything is opened."""
        self.number = 0
        self._config, self._service, self._engine = config, service, engine
        self._credentials = _credentials(config)
        self.server: Any = None

    async def start(self, tasks: Tasks) -> None:
        config = self._config
        self.server, self.number = await serve(self._service, config.listen, self._credentials)
        host, _ = address_of(config.listen, "--listen")
        address = netloc_of(host, self.number)
        log.info("listening on %s for gateways, engine at %s", address, self._engine)
        if is_open_to_all(config):
            log.warning(
                "%s: no credentials required; any client can read which blocks are cached (see "
                "--token-file, --client-ca-file)",
                address,
            )

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(STOP_GRACE_S)


class Sidecar:
    def __init__(self, config: AgentConfig, name: str) -> None:
        """Make an agent; `name` is reported to readers. Raises ConfigError before anything is opened."""
        self.config = config
        self._name = name
        token = read_key(config.token_file, "--token-file") if config.token_file else None
        self.service = KvEvents(self._find, token)
        self.engine = engine = WatchedEngine(config)
        self.listening = AgentPort(config, self.service, engine.url)
        self.fleet, self.store, self.roster = engine.fleet, engine.store, engine.roster

    @property
    def port(self) -> int:
        return self.listening.number

    async def start(self) -> None:
        """Open the port and wait for the engine. Raises ConfigError, with everything closed again."""
        await start_all([self.engine, self.listening])

    async def stop(self) -> None:
        await stop_all([self.engine, self.listening], 0.0)

    def _find(self, dp_rank: int) -> tuple[AgentHello, RankState] | None:
        for endpoint in self.roster:
            for worker in endpoint.workers:
                rank = self.store.ranks.get(worker.id)
                if worker.dp_rank == dp_rank and rank and worker.id in endpoint.feeds:
                    start_time_s = endpoint.facts.start_time_s if endpoint.facts else None
                    return _hello(worker, rank, start_time_s, self._name), rank
        return None


def _hello(worker: Worker, rank: RankState, start_time_s: float | None, agent: str) -> AgentHello:
    return AgentHello(
        engine_url=worker.url,
        dp_rank=worker.dp_rank,
        block_size=rank.inventory.block_size,
        root=rank.inventory.root,
        status=rank.journal.status,
        start_time_s=start_time_s or 0.0,
        num_blocks=rank.inventory.num_blocks,
        agent=agent,
    )


def _engine_url(url: str) -> str:
    try:
        return endpoint_url(url)
    except ValueError as exc:
        raise ConfigError(f"--engine-url: {exc}") from exc


def _key_header(key_file: str) -> dict[str, str]:
    return {"authorization": f"Bearer {read_key(key_file, '--engine-key-file')}"} if key_file else {}


def _credentials(config: AgentConfig) -> Any | None:
    if not config.tls_cert_file:
        return None
    return server_credentials(config.tls_cert_file, config.tls_key_file, config.client_ca_file)


def is_open_to_all(config: AgentConfig) -> bool:
    """True if other hosts can reach the agent and it requires no credentials."""
    host, _ = address_of(config.listen, "--listen")
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    return not (is_loopback or config.token_file or config.client_ca_file)


async def run(config: AgentConfig, name: str) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code."""
    stop = stop_event()
    sidecar = Sidecar(config, name)
    await sidecar.start()
    try:
        await stop.wait()
    finally:
        await sidecar.stop()
    return 0
