"""Log of reported values that are ignored: names that no request may use, impossible figures."""

from collections.abc import Collection, Mapping, Sequence

from gateway.core.eligibility import summary
from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Fleet
from gateway.core.worker import Worker, WorkerId
from gateway.discovery.probed import Facts, block_size_of
from gateway.runtime.rate_limited_log import RateLimitedLog


def log_unusable(log: RateLimitedLog, fleet: Fleet, worker: Worker) -> None:
    """Log the models of a worker that no request may use; the ranks of an endpoint list the same."""
    if unusable := fleet.unusable(worker.id):
        text = "worker %s: not used for %s; their requests go to other workers"
        log.warning(text, worker.url, summary(unusable))


def log_unfollowed(log: RateLimitedLog, workers: Sequence[Worker], num_followed: int, max_feeds: int) -> None:
    """Log an endpoint with more ranks than are followed, `max_feeds`."""
    if num_followed == max_feeds < len(workers):
        text = "worker %s: KV events of %d of its %d ranks are followed; the others' caches are assumed"
        log.warning(text, workers[0].url, num_followed, len(workers))


def log_block_sizes(log: RateLimitedLog, workers: Sequence[Worker], facts: Facts) -> None:
    """Log an endpoint with ranks that report another block size than most."""
    size = block_size_of(facts)
    if num_others := sum(metrics.block_size not in (None, size) for metrics in facts.ranks.values()):
        text = "worker %s: %d of its %d ranks report another block size than %s, and are routed by load"
        log.warning(text, facts.url, num_others, len(workers), size)


def log_sizeless(log: RateLimitedLog, workers: Sequence[Worker], followed: Collection[WorkerId]) -> None:
    """Log an endpoint that reports no block size: its events may show it, or it is routed by load."""
    if unknown := [worker for worker in workers if not worker.block_size]:
        if unknown[0].id in followed:
            log.info("worker %s: no block size in its metrics; its KV events will show it", unknown[0].url)
        else:
            text = (
                "worker %s: no block size in its metrics, and no KV events to show one: its cache is "
                'unknown, so it is routed by load ([workers."URL"] block_size sets the size)'
            )
            log.warning(text, unknown[0].url)


def log_block_size(
    log: RateLimitedLog, worker: WorkerId, shown: int, reported: int | None, *, before: int | None = None
) -> None:
    """Log a block size that KV events show, beside the one that is reported, or that they showed `before`."""
    if before:
        text = "worker %s: its KV events have blocks of %d tokens now, %d before"
        log.warning(text, worker, shown, before)
    elif reported:
        text = (
            "worker %s: its KV events have blocks of %d tokens, its metrics report %d; the events' size is "
            'used ([workers."URL"] block_size overrides both)'
        )
        log.warning(text, worker, shown, reported)
    else:
        log.info("worker %s: its KV events show a block size of %d tokens", worker, shown)


def log_figures(log: RateLimitedLog, url: str, ranks: Mapping[int, EngineMetrics]) -> None:
    """Log the figures of a metrics page that are beyond their bounds (`core/figure_bounds.py`)."""
    if refused := sorted({name for metrics in ranks.values() for name in metrics.refused}):
        text = "worker %s: impossible metrics ignored (%s); they count as not reported"
        log.warning(text, url, ", ".join(refused))
