"""Metrics page under vLLM's names, in Prometheus' text form; the ones that a gateway or a person reads."""

import time
from collections.abc import Callable, Iterator, Sequence

from engines.sim.config import SimConfig
from engines.sim.histogram import SimHistogram
from engines.sim.pd.info import metric_lines
from engines.sim.pd.transfers import Transfers
from engines.sim.rank import SimRank

Value = Callable[[SimRank], float]

GAUGES: dict[str, Value] = {
    "vllm:num_requests_running": lambda rank: rank.gauges.num_running,
    "vllm:num_requests_waiting": lambda rank: rank.gauges.num_waiting,
    "vllm:kv_cache_usage_perc": lambda rank: rank.gauges.kv_usage,
}
COUNTERS: dict[str, Value] = {
    "vllm:prefix_cache_queries_total": lambda rank: rank.scheduler.counts.prefix_queries,
    "vllm:prefix_cache_hits_total": lambda rank: rank.scheduler.counts.prefix_hits,
    "vllm:num_preemptions_total": lambda rank: rank.scheduler.counts.preemptions,
    "vllm:prompt_tokens_total": lambda rank: rank.scheduler.counts.prompt_tokens,
    "vllm:prompt_tokens_cached_total": lambda rank: rank.scheduler.counts.cached_tokens,
    "vllm:generation_tokens_total": lambda rank: rank.scheduler.counts.generated_tokens,
}
HISTOGRAMS: dict[str, Callable[[SimRank], SimHistogram]] = {
    "vllm:time_to_first_token_seconds": lambda rank: rank.ttft,
    "vllm:inter_token_latency_seconds": lambda rank: rank.itl,
    "vllm:e2e_request_latency_seconds": lambda rank: rank.e2e,
}
SOURCES: dict[str, Value] = {
    "local_compute": lambda rank: rank.scheduler.counts.prompt_tokens - rank.scheduler.counts.cached_tokens,
    "local_cache_hit": lambda rank: (
        rank.scheduler.counts.cached_tokens - rank.scheduler.counts.external_tokens
    ),
    "external_kv_transfer": lambda rank: rank.scheduler.counts.external_tokens,
}


def exposition(
    config: SimConfig, ranks: Sequence[SimRank], started: float, transfers: Transfers | None = None
) -> str:
    """Text of the page. `started`: wall clock in seconds."""
    lines = [*_lines(config, ranks, started), *(metric_lines(config, transfers) if transfers else ())]
    return "\n".join(lines) + "\n"


def _lines(config: SimConfig, ranks: Sequence[SimRank], started: float) -> Iterator[str]:
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {started}"
    yield "# TYPE process_cpu_seconds_total counter"
    yield f"process_cpu_seconds_total {time.process_time()}"
    model = f'model_name="{config.model}"'
    for kind, table in (("gauge", GAUGES), ("counter", COUNTERS)):
        for name, value in table.items():
            yield f"# TYPE {name} {kind}"
            for rank in ranks:
                yield f'{name}{{engine="{rank.number}",{model}}} {float(value(rank))}'
    yield from _labelled(ranks, model)
    for name, histogram in HISTOGRAMS.items():
        yield f"# TYPE {name} histogram"
        for rank in ranks:
            yield from _histogram(name, f'engine="{rank.number}"', model, histogram(rank))
    yield from _info(config, ranks)


def _labelled(ranks: Sequence[SimRank], model: str) -> Iterator[str]:
    yield "# TYPE vllm:prompt_tokens_by_source_total counter"
    for rank in ranks:
        for source, value in SOURCES.items():
            labels = f'engine="{rank.number}",{model},source="{source}"'
            yield f"vllm:prompt_tokens_by_source_total{{{labels}}} {float(value(rank))}"
    yield "# TYPE vllm:request_success_total counter"
    for rank in ranks:
        for reason, count in rank.scheduler.counts.finished.items():
            labels = f'engine="{rank.number}",finished_reason="{reason}",{model}'
            yield f"vllm:request_success_total{{{labels}}} {float(count)}"


def _histogram(name: str, engine: str, model: str, histogram: SimHistogram) -> Iterator[str]:
    for bound, count in histogram.buckets():
        yield f'{name}_bucket{{{engine},le="{bound}",{model}}} {float(count)}'
    yield f"{name}_count{{{engine},{model}}} {float(histogram.count)}"
    yield f"{name}_sum{{{engine},{model}}} {histogram.sum}"


def _info(config: SimConfig, ranks: Sequence[SimRank]) -> Iterator[str]:
    yield "# TYPE vllm:cache_config_info gauge"
    for rank in ranks:
        labels = {
            "block_size": config.block_size,
            "cache_dtype": config.cache_dtype,
            "enable_prefix_caching": True,
            "engine": rank.number,
            "kv_cache_size_tokens": config.kv_blocks * config.block_size,
            "num_gpu_blocks": config.kv_blocks,
            "prefix_caching_hash_algo": "sha256_cbor",
        }
        pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
        yield f"vllm:cache_config_info{{{pairs}}} 1.0"
    if config.lora:
        yield "# TYPE vllm:lora_requests_info gauge"
        names = ",".join(config.lora)
        loras = f'max_lora="{len(config.lora)}",running_lora_adapters="{names}",waiting_lora_adapters=""'
        yield f"vllm:lora_requests_info{{{loras}}} {time.time()}"
