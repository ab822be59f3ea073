from gateway.core.engine import EngineMetrics
from gateway.observability.verification.engine_counters import EngineCounters


def after(*scrapes: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    counters = EngineCounters()
    for queries, hits in scrapes:
        counters.scraped(EngineMetrics(prefix_cache_queries_total=queries, prefix_cache_hits_total=hits))
    return counters.prompt_tokens, counters.cached_tokens


def test_counts_from_before_the_worker_joined_are_not_included() -> None:
    assert after((1000, 900)) == (0, 0)
    assert after((1000, 900), (1100, 950), (1100, 950)) == (100, 50)


def test_an_engine_that_does_not_count_is_not_taken_for_idle() -> None:
    assert after() == after((None, None)) == after((5, None)) == (None, None)


def test_a_scrape_without_counters_is_skipped() -> None:
    assert after((10, 5), (None, None), (30, 10)) == (20, 5)


def test_no_count_decreases() -> None:
    """A worker may report fewer cached tokens of more prompts than before."""
    assert after((1000, 900), (1100, 10)) == (1100, 10)
    assert after((1000, 900), (1100, -5), (1100, 1200), (-1, -1), (1100, 950)) == (100, 50)


def test_a_new_process_begins_at_zero() -> None:
    assert after((1000, 900), (1100, 950), (40, 10), (60, 20)) == (160, 70)
