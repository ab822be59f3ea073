"""Facts that an endpoint reported, and the workers and event sources that follow from them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.errors import ConfigError
from gateway.core.hit_rule import PLAIN, HitRule
from gateway.core.rendering import VLLM, Rendering
from gateway.core.worker import (
    LOAD_FIGURES,
    ReportedLoad,
    Role,
    ServedModel,
    Transfer,
    Worker,
    WorkerId,
    worker_id,
)
from gateway.http.address import Address, worker_url


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one endpoint. `sources` is None where it does not report its publisher; `role` is "prefill" or
    "decode" for disaggregated workers; `engine_ids` are names by rank for others' transfers."""

    url: str
    engine: str
    models: tuple[ModelInfo, ...]
    ranks: Mapping[int, EngineMetrics] = field(default_factory=dict)
    sources: tuple[EventSource, ...] | None = None
    version: str | None = None
    role: str | None = None
    transfer: Transfer | None = None
    rendering: Rendering = VLLM
    hit_rule: HitRule = PLAIN
    engine_ids: Mapping[int, str] = field(default_factory=dict)
    reports_cached_tokens: bool | None = None
    max_running: int | None = None

    def is_like(self, other: "Facts") -> bool:
        """Return True if both describe the same engine with the same settings, whatever the load."""
        return self._settings == other._settings

    @property
    def _settings(self) -> object:
        sizes = {rank: (m.block_size, m.num_gpu_blocks) for rank, m in self.ranks.items()}
        bases = tuple(
            model for model in self.models if not model.parent
        )  # without adapters, which are loaded and unloaded
        how = self.rendering, self.hit_rule, self.max_running
        return self.engine, self.version, bases, self.sources, self.role, self.transfer, how, sizes

    @property
    def start_time_s(self) -> float | None:
        return next((m.start_time_s for m in self.ranks.values() if m.start_time_s), None)


class Mode(IntEnum):
    """Precision of the knowledge of a worker's cache; each level includes the one before."""

    LOAD_ONLY = 0
    APPROXIMATE = 1
    EXACT = 2
    VERIFIED = 3

    @property
    def label(self) -> str:
        return ("load only", "approximate", "exact", "exact and verified")[self]


def known_ranks(
    from_engine: Mapping[int, EngineMetrics], metrics: Mapping[int, EngineMetrics]
) -> dict[int, EngineMetrics]:
    """Combine the metrics of ranks with facts the engine reported otherwise; if those name ranks, there are
    no others."""
    ranks = {}
    for rank in sorted(from_engine or metrics):
        more, ours = asdict(from_engine.get(rank, EngineMetrics())), metrics.get(rank, EngineMetrics())
        ranks[rank] = replace(
            ours, **{name: more[name] for name, value in asdict(ours).items() if value is None}
        )
    return ranks


def endpoint_url(url: str) -> str:
    """Normalize a base URL, or a dns+ name. Raises ValueError with the reason."""
    return worker_url(url)


def worker_urls(urls: Sequence[str]) -> list[str]:
    """Normalize worker URLs, without duplicates. Raises ConfigError."""
    try:
        return list(dict.fromkeys(endpoint_url(url) for url in urls))
    except ValueError as exc:
        raise ConfigError(f"worker: {exc}") from exc


def workers_of(facts: Facts) -> tuple[Worker, ...]:
    """Return one worker per data-parallel rank. The block size is that of most ranks, and unknown of the
    others: an engine has one."""
    ranks, size = sorted(facts.ranks) or [0], block_size_of(facts)
    name = Address.of(facts.url).name
    served = served_models(facts.models)
    return tuple(_worker(facts, name, served, rank, len(ranks), size) for rank in ranks)


def block_size_of(facts: Facts) -> int | None:
    """Return the block size of most ranks, the first of equals; None if none is known."""
    sizes = Counter(metrics.block_size for metrics in facts.ranks.values() if metrics.block_size)
    return max(sizes, key=sizes.__getitem__, default=None)


def served_models(models: tuple[ModelInfo, ...]) -> tuple[ServedModel, ...]:
    """Return the served names: adapters share the root of their base, and keep their own name as the adapter.
    The base is the first with the name or root that an adapter declares (it may declare the model it was
    trained on by another name); else the only one there is."""
    named: dict[str | None, ModelInfo] = {}
    bases = [model for model in models if not model.parent]
    for base in bases:
        named.setdefault(base.id, base)
        named.setdefault(base.root, base)
    only = bases[0] if len({base.root or base.id for base in bases}) == 1 else None
    served: list[ServedModel] = []
    for model in models:
        if model.parent:
            found = named.get(model.parent, only)
            parent = found.id if found else model.parent
            root = (found.root or found.id) if found else model.parent
            most = found.max_model_len if found else None
            served.append(ServedModel(model.id, root, model.id, most, parent, model.called, model.paths))
        else:
            served.append(ServedModel(model.id, model.root or model.id, None, model.max_model_len))
    return tuple(served)


def reported(metrics: EngineMetrics) -> ReportedLoad:
    figures = (metrics.num_requests_running, metrics.num_requests_waiting, metrics.kv_cache_usage)
    return ReportedLoad(
        unknown=frozenset(name for name, value in zip(LOAD_FIGURES, figures, strict=True) if value is None),
        num_running=metrics.num_requests_running or 0,
        num_waiting=metrics.num_requests_waiting or 0,
        kv_usage=min(metrics.kv_cache_usage or 0.0, 1.0),
        transfer_bytes=metrics.transfer_bytes_total,
        transfer_s=metrics.transfer_seconds_total,
    )


def event_source(facts: Facts, rank: int, events_port: int, replay_port: int) -> EventSource | None:
    """Return where a rank publishes: as it reports, else at the configured or default ports."""
    if facts.sources is not None:
        return next((source for source in facts.sources if source.dp_rank == rank), None)
    replay = f"tcp://*:{replay_port + rank}" if replay_port else None
    return EventSource(rank, f"tcp://*:{events_port + rank}", replay, is_reported=False)


def has_changed(
    facts: Facts, ranks: Mapping[int, EngineMetrics], sizes: Mapping[int, int] = MappingProxyType({})
) -> bool:
    """Return True if another process answers: its start time differs, or the block size of a rank, which an
    engine with late metrics reports only now, unless its events showed one of `sizes` before."""
    for rank, metrics in ranks.items():
        known = facts.ranks.get(rank)
        size = known.block_size if known else None
        if metrics.block_size and metrics.block_size != size and (size or rank not in sizes):
            return True
    before = facts.start_time_s
    now = next((metrics.start_time_s for metrics in ranks.values() if metrics.start_time_s), None)
    return before is not None and now is not None and abs(now - before) > 0.5


def _worker(
    facts: Facts, name: str, served: tuple[ServedModel, ...], rank: int, num_ranks: int, size: int | None
) -> Worker:
    metrics = facts.ranks.get(rank, EngineMetrics())
    return Worker(
        id=WorkerId(worker_id(name, rank, num_ranks)),
        url=facts.url,
        served=served,
        dp_rank=rank,
        dp_size=num_ranks,
        block_size=size if metrics.block_size == size else None,
        num_blocks=metrics.num_gpu_blocks,
        engine=facts.engine,
        version=facts.version,
        role=Role(facts.role) if facts.role else Role.BOTH,
        transfer=_reachable(facts, rank),
        rendering=facts.rendering,
        hit_rule=facts.hit_rule,
        max_running=facts.max_running,
        reports_cached_tokens=facts.reports_cached_tokens,
    )


def _reachable(facts: Facts, rank: int) -> Transfer | None:
    """Replace the host of a transfer address, which the worker reports as it sees itself, by the
    one we know."""
    transfer = facts.transfer
    if transfer is None or transfer.address is None:
        return transfer
    address = transfer.address.replace("*", Address.of(facts.url).host)
    return replace(transfer, address=address, engine_id=facts.engine_ids.get(rank, transfer.engine_id))
