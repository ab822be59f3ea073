"""Figures of each side of the demo, and the lines that compare them. Pure."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.replay.results import Curves, percentile

WARM_UP_S = 10.0
"""Seconds of traffic that are played and not scored: all caches are empty at first, and a gateway that knows
them has nothing to choose by."""
OBJECTIVE_S = 1.0
"""Time to first token that the demo takes for the objective."""


@dataclass(slots=True)
class Score:
    """Answers of one side. Lists have an element per answered request, in the order of the answers. Requests
    of the first `warm_up_s` seconds count in `num_warming` alone."""

    name: str
    num_failed: int = 0
    warm_up_s: float = 0.0
    num_warming: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sent_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    hits: list[tuple[int, int]] = field(default_factory=list)

    def answered(self, at_s: float, ttft_s: float, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a request that was sent at `at_s`."""
        if at_s < self.warm_up_s:
            self.num_warming += 1
            return
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.sent_s.append(at_s)
        self.ttft_s.append(ttft_s)
        self.hits.append((cached_tokens, prompt_tokens))

    def failed(self, at_s: float) -> None:
        """Count a request that was sent at `at_s`, or should have been, and has no whole answer."""
        if at_s < self.warm_up_s:
            self.num_warming += 1
        else:
            self.num_failed += 1

    @property
    def is_warming(self) -> bool:
        """True until the first request that is scored."""
        return bool(self.warm_up_s) and not self.num_answered and not self.num_failed

    @property
    def num_answered(self) -> int:
        return len(self.ttft_s)

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens ÷ prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def good(self) -> float:
        """Share of the requests with a first token within the objective; failed ones have none."""
        num = self.num_answered + self.num_failed
        return sum(ttft_s <= OBJECTIVE_S for ttft_s in self.ttft_s) / num if num else 0.0

    def ttft(self, percent: float) -> float:
        """Percentile of the time to first token in seconds; 0 before the first answer."""
        return percentile(sorted(self.ttft_s), percent) if self.ttft_s else 0.0

    def curves(self, num_points: int = 60) -> Curves:
        """Times to first token in order, and hit rates by the time of sending."""
        end_s = max(self.sent_s, default=0.0) or 1.0
        cached, asked = [0] * num_points, [0] * num_points
        for at_s, (hit, num) in zip(self.sent_s, self.hits, strict=True):
            slot = min(int(at_s / end_s * num_points), num_points - 1)
            cached[slot] += hit
            asked[slot] += num
        full = [i for i in range(num_points) if asked[i]]
        return Curves(
            array("d", sorted(self.ttft_s)),
            array("d", [(i + 0.5) / num_points * end_s for i in full]),
            array("d", [cached[i] / asked[i] for i in full]),
        )


ROWS = (
    "requests answered",
    "requests failed",
    "prompt tokens cached",
    "prompt tokens computed",
    "TTFT p50",
    "TTFT p90",
    "within {} s",
)


def lines(scores: Sequence[Score]) -> list[str]:
    """Return a table of both sides, a row per figure."""
    warming = "warming up" if any(score.is_warming for score in scores) else ""
    titles = [warming, *(score.name for score in scores)]
    cells = [titles]
    for number, row in enumerate(ROWS):
        cells.append([row.format(f"{OBJECTIVE_S:g}"), *(_cell(score, number) for score in scores)])
    return [
        "  ".join(f"{text:<24}" if i == 0 else f"{text:>14}" for i, text in enumerate(row)) for row in cells
    ]


def _cell(score: Score, row: int) -> str:
    cells = (
        f"{score.num_answered:,}",
        f"{score.num_failed:,}",
        f"{score.hit_rate:.1%}",
        f"{score.computed_tokens:,}",
        f"{score.ttft(50):.2f} s",
        f"{score.ttft(90):.2f} s",
        f"{score.good:.1%}",
    )
    return cells[row]


def one_line(ours: Score, other: Score) -> str:
    """Both sides in one line, where the output is no terminal."""
    if ours.is_warming or other.is_warming:
        return f"warming up: {ours.num_warming} requests; those after {ours.warm_up_s:g} s are compared"
    failed = f"; failed {ours.num_failed} against {other.num_failed}" * bool(
        ours.num_failed or other.num_failed
    )
    return (
        f"{ours.num_answered} requests: cached {ours.hit_rate:.0%} against {other.hit_rate:.0%} by "
        f"{other.name}, TTFT p90 {ours.ttft(90):.2f} s against {other.ttft(90):.2f} s{failed}"
    )


def summary(ours: Score, other: Score) -> str:
    """Return in one sentence what cache-aware routing has changed."""
    if ours.is_warming or other.is_warming:
        return f"no comparison: the first {ours.warm_up_s:g} s, in which the caches fill, are not scored"
    if not ours.num_answered or not other.num_answered:
        return "no request was answered yet"
    saved = 1 - ours.computed_tokens / other.computed_tokens if other.computed_tokens else 0.0
    words = f"saved {saved:.0%} of prefill" if saved >= 0 else f"computed {-saved:.0%} more of the prompts"
    ratio = other.ttft(90) / ours.ttft(90) if ours.ttft(90) else 1.0
    sooner = f"{ratio:.1f}× sooner" if ratio >= 1 else f"{1 / ratio:.1f}× later"
    failed = f"; failed {ours.num_failed:,} (by {other.name}: {other.num_failed:,})"
    failed *= bool(ours.num_failed or other.num_failed)
    return (
        f"{words}; TTFT p90 {sooner}; {ours.good:.0%} of {ours.num_answered:,} requests within "
        f"{OBJECTIVE_S:g} s (by {other.name}: {other.good:.0%}){failed}"
    )
