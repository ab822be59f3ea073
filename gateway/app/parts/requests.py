"""Requests on their way: admission, prompt, decision, worker, answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from gateway.app.parts.shared_bookings import SharedBookingsPart
from gateway.app.parts.upstream import UpstreamPart
from gateway.bookings.tenant_usage import QuotaUsage
from gateway.config import Config
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
from gateway.proxy.time_slice import TimeSlice
from gateway.proxy.usage_check import UsageCheck
from gateway.routing.remote_lookup import RemoteLookup
from gateway.tenancy.admission import metrics as admission
from gateway.tenancy.admission.gate import Gate, follow, gate_of
from gateway.tenancy.admission.metrics import AdmissionCollector, describe_admission
from gateway.tenancy.admission.request_identity import trusted_peers

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


class RequestsPart(Component):
    metric_sections = (
        ("Retries and buffered request bodies", retry_metrics.METRICS),
        ("Admission control", admission.METRICS),
    )

    def __init__(
        self,
        config: Config,
        routing: RoutingPart,
        index: IndexPart,
        prompts: PromptsPart,
        upstream: UpstreamPart,
        roster: RosterPart,
        lifecycle: LifecyclePart,
        streams: EventStreamsPart,
        surface: ClientSurfacePart,
        bookings: SharedBookingsPart,
        verifier: Verifier,
        metrics: Metrics,
        telemetry: Telemetry,
        quota_usage: UsageOf | None,
        open_requests: OpenRequests,
    ) -> None:
        """Make the dispatch of requests, within the running event loop. Raises ConfigError."""
        self._verifier, self._surface, self._quota_usage = verifier, surface, quota_usage
        self._router = router = routing.router
        remote_lookup = RemoteLookup(router, index.fetch) if index.fetch else None
        under_lock = bookings.bookings.under_lock if bookings.bookings else None
        context = Context(
            config=config,
            router=router,
            prompts=Prompts(prompts.source, router, prompts.worker_tokenizer, remote_lookup),
            metrics=metrics,
            records=routing.records,
            tasks=self.tasks,
            pools=upstream.pools,
            outgoing=upstream.outgoing,
            usages=UsageCheck(metrics, USAGES),
            suspect=roster.suspect,
            faults=lifecycle.lifecycle.faults,
            busy=lifecycle.rejected,
            gate=gate_of(config, router, quota_usage),
            ask_usage=self._asking(config),
            time_slice=TimeSlice(under_lock, router.tokenize) if under_lock else None,
            to_report=streams.recovery_observer.asking,
            response_ids=surface.response_ids,
            bodies=surface.bodies,
            end_observers=telemetry.end_observers,
        )
        legs = legs_of(context, routing)
        self.dispatch = Dispatch(context, legs, telemetry.traces)
        open_requests.attach(self.dispatch, legs)

    @property
    def gate(self) -> Gate | None:
        return self.dispatch.context.gate

    async def drain(self, seconds: float) -> None:
        self.dispatch.stop(seconds)

    async def stop(self) -> None:
        self.dispatch.context.prompts.long_prompts.close()

    async def reconfigure(self, change: ConfigChange) -> Swap | None:
        trusted_peers(change.config)  # all that may fail in the gate
        return lambda: self._use(change.config)

    def collectors(self) -> Sequence[Collector]:
        retries = RetriesCollector(self.dispatch.context.retries, self._surface.bodies)
        return [retries, _Admission(lambda: self.gate)]

    def admin_handlers(self) -> Mapping[str, Handler]:
        return {"admission": shows(lambda: describe_admission(self.gate))}

    def _use(self, config: Config) -> None:
        self.dispatch.reconfigure(config, self._asking(config))
        if (gate := self.gate) is not None:
            gate.reconfigure(config)
            follow(self._router, gate.queues)
        elif (gate := gate_of(config, self._router, self._quota_usage)) is not None:
            self.dispatch.open_gate(gate)

    def _asking(self, config: Config) -> AskUsage:
        """Usage sampling: the streams for which the worker is to report usage."""
        mode = "all" if config.record.file else config.proxy.usage_injection
        return UsageSampling(mode, USAGES, self._verifier.in_doubt).ask


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
