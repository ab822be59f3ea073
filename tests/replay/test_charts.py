from xml.etree import ElementTree

import pytest

from gateway.replay.charts import page
from gateway.replay.results import Slo, curves, summarize, table
from tests.support.recordings import done_job


def test_a_page_has_a_line_for_each_policy_in_each_chart() -> None:
    done = [done_job(float(i), 0.01 * 3**i, 10 * i) for i in range(8)]
    rows = [summarize(name, done, 1, Slo()) for name in ("<a>", "b")]
    text = page("a & b", ["<a>", "b"], [curves(done)] * 2, table(rows), "note")
    root = ElementTree.fromstring(
        text.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "")
    )
    charts = root.findall(".//svg")
    assert len(charts) == 2 and "<a>" in "".join(root.itertext())
    for chart in charts:
        lines = chart.findall("polyline")
        assert len(lines) == 2
        for pair in lines[0].attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 620 and 0 <= y <= 320
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("ttft_s", [0.0, 1.0])
def test_a_single_request_is_drawn(ttft_s: float) -> None:
    done = [done_job(0.0, ttft_s, 0)]
    assert "<polyline" in page("t", ["p"], [curves(done)], table([summarize("p", done, 1, Slo())]))
