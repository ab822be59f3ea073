"""HTML page with two charts as SVG: the distribution of TTFT, and the hit rate over time. No dependency, and
nothing is loaded from elsewhere."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from gateway.replay.results import Curves

COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8e6c8a", "#e08e0b", "#00798c", "#6b4423", "#777777")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 620, 320, 52, 40, 14, 14
MAX_POINTS = 400
"""Points of a distribution: more than can be seen."""

Point = tuple[float, float]
Place = Callable[[float], float]
"""Maps a value to its position on the page."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis from `low` to `high`; `ticks` are values and their labels."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def share(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def page(
    title: str, names: Sequence[str], drawn: Sequence[Curves], lines: Sequence[str], note: str = ""
) -> str:
    """Return a page with the curves of each name, and `lines` as a table."""
    ttft = [_distribution(each.ttft_s) for each in drawn]
    hits = [list(zip(each.hit_s, each.hits, strict=True)) for each in drawn]
    highest = max((hit for points in hits for _, hit in points), default=0.0)
    share = Axis("requests", 0.0, 1.0, [(i / 4, f"{i * 25} %") for i in range(5)])
    over = _linear("seconds since the first request", max(x for points in hits for x, _ in points))
    rate = _linear("hit rate", max(highest, 0.01))
    return _PAGE.format(
        title=escape(title),
        legend="".join(_legend(names)),
        ttft=_chart("TTFT: share of requests within", _log("seconds", ttft), share, ttft),
        hits=_chart("Hit rate over time", over, rate, hits),
        table=escape("\n".join(lines)),
        note=escape(note),
    )


def _distribution(ordered: Sequence[float]) -> list[Point]:
    num = len(ordered)
    steps = sorted({round(i * (num - 1) / MAX_POINTS) for i in range(MAX_POINTS + 1)})
    return [(ordered[i], (i + 1) / num) for i in steps]


def _log(title: str, lines: Sequence[Sequence[Point]]) -> Axis:
    values = [x for points in lines for x, _ in points if x > 0] or [1.0]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = max(last, first + 1)
    return Axis(
        title, 10.0**first, 10.0**last, [(10.0**i, f"{10.0**i:g}") for i in range(first, last + 1)], True
    )


def _linear(title: str, most: float) -> Axis:
    """Axis up to a round number, in about five parts."""
    unit = 10.0 ** math.floor(math.log10(max(most, 1e-9) / 5))
    step = next(unit * n for n in (1, 2, 5, 10) if unit * n * 5 >= most * 0.999)
    num = max(math.ceil(most / step - 1e-9), 1)
    return Axis(title, 0.0, step * num, [(step * i, f"{step * i:g}") for i in range(num + 1)])


def _chart(title: str, across: Axis, up: Axis, lines: Sequence[Sequence[Point]]) -> str:
    def x(value: float) -> float:
        return LEFT + across.share(value) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - up.share(value) * (HEIGHT - BOTTOM - TOP)

    drawn = "".join([*_grid(across, up, x, y), *_lines(lines, x, y)])
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{drawn}</svg></figure>'
    )


def _grid(across: Axis, up: Axis, x: Place, y: Place) -> Iterator[str]:
    low, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value, text in across.ticks:
        at = f'x1="{x(value):.1f}" x2="{x(value):.1f}"'
        yield f'<line class="grid" {at} y1="{TOP}" y2="{low}"/>'
        yield f'<text x="{x(value):.1f}" y="{low + 15}" text-anchor="middle">{text}</text>'
    for value, text in up.ticks:
        at = f'y1="{y(value):.1f}" y2="{y(value):.1f}"'
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" {at}/>'
        yield f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>'
    middle = (right + LEFT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across.title)}</text>'


def _lines(lines: Sequence[Sequence[Point]], x: Place, y: Place) -> Iterator[str]:
    for i, points in enumerate(lines):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        yield f'<polyline stroke="{COLOURS[i % len(COLOURS)]}" points="{path}"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    for i, name in enumerate(names):
        yield f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{escape(name)}</span>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }}
h1 {{ font-size: 1.2rem }} figure {{ margin: 0; flex: 1 1 30rem }} figcaption {{ font-weight: 600 }}
.charts {{ display: flex; flex-wrap: wrap; gap: 2rem }} svg {{ width: 100% }} pre {{ overflow-x: auto }}
svg text {{ font-size: 11px; fill: #555 }} .grid {{ stroke: #ddd }}
polyline {{ fill: none; stroke-width: 1.8 }} .legend span {{ margin-right: 1.2rem }}
.legend i {{ display: inline-block; width: 1.2rem; height: .3rem; margin: 0 .4rem .2rem 0 }}
@media (prefers-color-scheme: dark) {{
body {{ background: #16191d; color: #e6e6e6 }} svg text {{ fill: #aaa }} .grid {{ stroke: #333 }}
polyline {{ filter: brightness(1.5) }} .legend i {{ filter: brightness(1.5) }}
}}
</style></head><body>
<h1>{title}</h1>
<p class="legend">{legend}</p>
<div class="charts">{ttft}{hits}</div>
<pre>{table}</pre>
<p>{note}</p>
</body></html>
"""
