"""The demo's HTML page: the summary, and the curves and the table of both sides."""

from gateway.demo.processes import NUM_WORKERS, SIMULATED
from gateway.demo.score import WARM_UP_S, Score, lines, summary
from gateway.replay.charts import page

NOTE = (
    "Two simulated fleets of the same size got the same requests at the same times: one behind kvgate, one "
    "behind round robin. The workers simulate the cache, the queue and the speed of an engine, not a model: "
    f"{NUM_WORKERS} per fleet, {SIMULATED}. Requests of the first {WARM_UP_S:g} s, in which the caches fill, "
    "are not counted."
)


def report(ours: Score, other: Score) -> str:
    """Return a page that loads nothing from elsewhere."""
    both = [score for score in (ours, other) if score.num_answered]
    title = f"kvgate demo: {summary(ours, other)}"
    return page(title, [score.name for score in both], [score.curves() for score in both], lines(both), NOTE)
