"""The demo's page."""

from gateway.demo.report import report
from gateway.demo.score import Score


def test_the_page_has_the_summary_the_table_and_both_curves() -> None:
    ours, other = Score("kvgate"), Score("round robin")
    for at in range(20):
        ours.answered(at, 0.1, 100, 90)
        other.answered(at, 0.5, 100, 40)
    page = report(ours, other)
    assert "saved 83% of prefill; TTFT p90 5.0× sooner" in page
    assert page.count("<polyline") == 4
    assert "prompt tokens computed" in page
    assert "KV cache of 65,536 tokens, 6,000 prompt tokens/s and 50 answer tokens/s" in page
    assert "first 10 s, in which the caches fill, are not counted" in page
    assert "src=" not in page and "http" not in page
