"""Bounds of the figures that a worker reports of itself. What is beyond them counts as not reported.

A worker is not trusted with them: they size tables, divide and are divided by, weigh candidates and are added
up. The bounds are far beyond what any engine has, so that what they refuse is no figure at all.
"""

from collections.abc import Mapping

MAX_REQUESTS = 1 << 24
MAX_TOKENS = 1 << 40
"""Capacity of a cache; in blocks of one token it has as many blocks."""
MAX_BLOCKS = 1 << 31
MAX_BLOCK_SIZE = 1 << 20
"""Tokens; hybrid models have blocks of some thousands."""
MAX_MODEL_LEN = 1 << 27
MAX_COUNT = 1 << 62
MAX_SECONDS = float(1 << 34)
"""Also as a time since 1970."""
MAX_VERSION_CHARS = 64

FIGURES: Mapping[str, tuple[float, float]] = {
    "num_requests_running": (0, MAX_REQUESTS),
    "num_requests_waiting": (0, MAX_REQUESTS),
    "kv_cache_usage": (0.0, 100.0),  # a full cache may be a little over 1: it is no empty one
    "block_size": (1, MAX_BLOCK_SIZE),
    "num_gpu_blocks": (0, MAX_BLOCKS),
    "kv_cache_size_tokens": (0, MAX_TOKENS),
    "prefix_cache_queries_total": (0, MAX_COUNT),
    "prefix_cache_hits_total": (0, MAX_COUNT),
    "start_time_s": (0.0, MAX_SECONDS),
    "transfer_bytes_total": (0.0, MAX_COUNT),
    "transfer_seconds_total": (0.0, MAX_SECONDS),
    "step_tokens_total": (0.0, MAX_COUNT),
}
"""Bounds of a rank's figures (`engine.EngineMetrics`)."""


def is_within(name: str, value: float) -> bool:
    """NaN is not, nor is an infinity."""
    lowest, highest = FIGURES[name]
    return lowest <= value <= highest


def model_len(reported: int | None) -> int | None:
    return reported if reported is not None and 0 < reported <= MAX_MODEL_LEN else None


def max_running(reported: int | None) -> int | None:
    return reported if reported is not None and 0 < reported <= MAX_REQUESTS else None


def version(reported: str | None) -> str | None:
    """Return a reported version if it is short and printable, since versions are logged; else None."""
    is_good = reported is not None and 0 < len(reported) <= MAX_VERSION_CHARS and reported.isprintable()
    return reported if is_good else None


def port(reported: int | None) -> int | None:
    return reported if reported is not None and 0 < reported < 1 << 16 else None
