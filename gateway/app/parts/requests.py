"""Requests on their way: admission, prompt, decision, worker, answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp.typedefs import Handler
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engines import ENGINES, KV_CONNECTORS
from gateway.admin.app import shows
from gateway.app.component import Component, ConfigChange, Swap
from gateway.app.parts.client_surface import ClientSurfacePart
from gateway.app.parts.event_streams import EventStreamsPart
from gateway.app.parts.index import IndexPart
from gateway.app.parts.lifecycle import LifecyclePart
from gateway.app.parts.open_requests import OpenRequests
from gateway.app.parts.prompts import PromptsPart
from gateway.app.parts.roster import RosterPart
from gateway.app.parts.routing import RoutingPart
from gateway.app.parts.upstream import UpstreamPart
from gateway.bookings.tenant_usage import QuotaUsage
from gateway.bookings.time_slice import TimeSlice
from gateway.config import Config
from gateway.core.pool_objects import PoolObjects
from gateway.disaggregation.legs import LegServices
from gateway.observability.metrics import Metrics
from gateway.observability.telemetry import Telemetry
from gateway.observability.verification.usage_sampling import UsageSampling
from gateway.observability.verification.verifier import Verifier
from gateway.proxy import retry_metrics
from gateway.proxy.context import AskUsage, Context
from gateway.proxy.dispatch import Dispatch
from gateway.proxy.prompts import Prompts
from gateway.proxy.retry_metrics import RetriesCollector
from gateway.proxy.usage_check import UsageCheck
from gateway.routing.remote_lookup import RemoteLookup
from gateway.routing.router import Router
from gateway.tenancy.admission import metrics as admission
from gateway.tenancy.admission.gate import Gate, follow, gate_of
from gateway.tenancy.admission.metrics import AdmissionCollector, describe_admission
from gateway.tenancy.admission.request_identity import trusted_peers
from gateway.tenancy.admission.zero import Outlook

if TYPE_CHECKING:
    from gateway.bookings.sync import SharedBookings

USAGES = {engine.name: engine.usage for engine in ENGINES.values()}
"""How each engine reports usage, by name."""

UsageOf = Callable[[str], QuotaUsage | None]
"""Quota usage of a tenant in all processes of this host."""


class _Admission(Collector):
    """Metrics of admission control, once it is on: a reload of the configuration may turn it on."""

    def __init__(self, gate: Callable[[], Gate | None]) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        if gate := self._gate():
            yield from AdmissionCollector(gate).collect()


@dataclass(eq=False, repr=False)
class RequestsPart(Component):
    """Dispatch of requests, and the parts that it needs."""

    metric_sections = (
        ("Retries and buffered request bodies", retry_metrics.METRICS),
        ("Admission control", admission.METRICS),
    )

    config: Config
    routing: RoutingPart
    index: IndexPart
    prompts: PromptsPart
    upstream: UpstreamPart
    roster: RosterPart
    lifecycle: LifecyclePart
    streams: EventStreamsPart
    surface: ClientSurfacePart
    bookings: "SharedBookings | None"
    verifier: Verifier
    metrics: Metrics
    telemetry: Telemetry
    quota_usage: UsageOf | None
    outlook: Outlook
    open_requests: OpenRequests
    objects: PoolObjects

    def __post_init__(self) -> None:
        """Make the dispatch of requests, within the running event loop. Raises ConfigError."""
        context = self._context(self.config, self.routing.router)
        legs = legs_of(context, self.routing)
        self.dispatch = Dispatch(context, legs, self.telemetry.traces)
        self.open_requests.attach(self.dispatch, legs)

    def _context(self, config: Config, router: Router) -> Context:
        fetch, under_lock = self.index.fetch, self.bookings.under_lock if self.bookings else None
        remote_lookup = RemoteLookup(router, fetch) if fetch else None
        time_slice = TimeSlice(under_lock, router.tokenize) if under_lock else None
        tokenizers, states = self.prompts, self.lifecycle.lifecycle
        return Context(
            config=config,
            router=router,
            prompts=Prompts(tokenizers.source, router, tokenizers.worker_tokenizer, remote_lookup),
            metrics=self.metrics,
            records=self.routing.records,
            tasks=self.tasks,
            pools=self.upstream.pools,
            outgoing=self.upstream.outgoing,
            usages=UsageCheck(self.metrics, USAGES),
            suspect=self.roster.suspect,
            faults=states.faults,
            busy=self.lifecycle.rejected,
            gate=gate_of(config, router, self.quota_usage, time_slice, self.outlook, self.objects),
            ask_usage=self._asking(config),
            time_slice=time_slice,
            to_report=self.streams.recovery_observer.asking,
            response_ids=self.surface.response_ids,
            bodies=self.surface.bodies,
            objects=self.objects,
            end_observers=self.telemetry.end_observers,
        )

    @property
    def gate(self) -> Gate | None:
        return self.dispatch.context.gate

    async def drain(self, seconds: float) -> None:
        self.dispatch.stop(seconds)

    async def stop(self) -> None:
        self.dispatch.cut()  # what no door's connection has ended
        self.dispatch.context.prompts.long_prompts.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        trusted_peers(change.config)  # all that may fail in the gate
        return lambda: self._use(change.config)

    def collectors(self) -> Sequence[Collector]:
        retries = RetriesCollector(self.dispatch.context.retries, self.surface.bodies)
        return [retries, _Admission(lambda: self.gate)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"admission": shows(lambda: describe_admission(self.gate))}

    def _use(self, config: Config) -> None:
        self.dispatch.reconfigure(config, self._asking(config))
        if (gate := self.gate) is not None:
            gate.reconfigure(config)
            follow(self.routing.router, gate.queues)
        else:
            time_slice = self.dispatch.context.time_slice
            gate = gate_of(
                config, self.routing.router, self.quota_usage, time_slice, self.outlook, self.objects
            )
            self.dispatch.open_gate(gate)

    def _asking(self, config: Config) -> AskUsage:
        """Usage sampling: the streams for which the worker is to report usage."""
        mode = "all" if config.record.file else config.proxy.usage_injection
        return UsageSampling(mode, USAGES, self.verifier.in_doubt).ask


def legs_of(context: Context, routing: RoutingPart) -> LegServices:
    return LegServices(
        disaggregation_stats=routing.disaggregation_stats,
        connectors=KV_CONNECTORS,
        router=context.router,
        metrics=context.metrics,
        pools=context.pools,
        outgoing=context.outgoing,
        start=context.tasks.start,
        log=context.log,
        failed=context.failed,
        busy=context.busy,
        refuse_usage=context.usages.refuse,
    )
