"""vLLM's metrics, by DP rank ("engine" in their labels)."""

from engines.prometheus import integer, label, series
from gateway.core.engine import EngineMetrics

GAUGES = (
    ("vllm:num_requests_running{", "num_requests_running"),
    ("vllm:num_requests_waiting{", "num_requests_waiting"),
    ("vllm:gpu_cache_usage_perc{", "kv_cache_usage"),  # its name up to 0.10; also 0..1
    ("vllm:kv_cache_usage_perc{", "kv_cache_usage"),
    ("vllm:prefix_cache_queries_total{", "prefix_cache_queries_total"),
    ("vllm:prefix_cache_hits_total{", "prefix_cache_hits_total"),
    ("vllm:nixl_bytes_transferred_sum{", "transfer_bytes_total"),
    ("vllm:nixl_xfer_time_seconds_sum{", "transfer_seconds_total"),
)
STEP_TOKENS = ("vllm:prompt_tokens_total{", "vllm:generation_tokens_total{")
"""Token counters of a step; a prompt's count rises with its first token, while its cache usage grows before
(v1/metrics)."""
CACHE_CONFIG = "vllm:cache_config_info{"
CACHE_CONFIG_LABELS = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")
START_TIME = "process_start_time_seconds "


def parse_metrics(text: str) -> dict[int, EngineMetrics]:
    found: dict[int, dict[str, float]] = {}
    for name, field in GAUGES:
        for labels, value in series(text, name):
            found.setdefault(_rank(labels), {})[field] = value
    for name in STEP_TOKENS:
        for labels, value in series(text, name):
            rank = found.setdefault(_rank(labels), {})
            rank["step_tokens_total"] = rank.get("step_tokens_total", 0.0) + value
    for labels, _ in series(text, CACHE_CONFIG):
        found.setdefault(_rank(labels), {}).update(_cache_config(labels))
    start = next((value for _, value in series(text, START_TIME)), None)
    for values in found.values():
        if "num_gpu_blocks" in values:  # of all ranks together, unlike its neighbours
            values["num_gpu_blocks"] //= len(found)
    return {rank: _metrics(values, start) for rank, values in sorted(found.items())}


def _rank(labels: str) -> int:
    return integer(label(labels, "engine")) or 0


def _cache_config(labels: str) -> dict[str, float]:
    values = ((name, integer(label(labels, name))) for name in CACHE_CONFIG_LABELS)
    return {name: value for name, value in values if value is not None}


def _metrics(values: dict[str, float], start_time_s: float | None) -> EngineMetrics:
    def integer(name: str) -> int | None:
        value = values.get(name)
        return None if value is None else int(value)

    return EngineMetrics(
        num_requests_running=integer("num_requests_running"),
        num_requests_waiting=integer("num_requests_waiting"),
        kv_cache_usage=values.get("kv_cache_usage"),
        block_size=integer("block_size"),
        num_gpu_blocks=integer("num_gpu_blocks"),
        kv_cache_size_tokens=integer("kv_cache_size_tokens"),
        prefix_cache_queries_total=integer("prefix_cache_queries_total"),
        prefix_cache_hits_total=integer("prefix_cache_hits_total"),
        start_time_s=start_time_s,
        transfer_bytes_total=values.get("transfer_bytes_total"),
        transfer_seconds_total=values.get("transfer_seconds_total"),
        step_tokens_total=values.get("step_tokens_total"),
    )
