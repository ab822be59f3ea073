"""Metrics of warming."""

from gateway.warming.hot_prefixes import HotPrefixes
from gateway.warming.metrics import WarmingCollector, WarmingCounts


def test_counts_are_shown_by_result_and_reason() -> None:
    counts = WarmingCounts(tokens=320, seconds=1.5)
    counts.requests["done"] += 2
    counts.skipped["role"] += 1
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in WarmingCollector(counts, HotPrefixes(1, 1.0)).collect()
        for sample in family.samples
    }
    assert samples == {
        ("kvgate_warming_requests_total", "done"): 2.0,
        ("kvgate_warming_tokens_total",): 320.0,
        ("kvgate_warming_seconds_total",): 1.5,
        ("kvgate_warming_skipped_total", "role"): 1.0,
        ("kvgate_warming_kept_bytes",): 0.0,
    }
