"""Figures of the demo, and their words."""

import pytest

from gateway.demo.score import Score, lines, one_line, summary


def score(name: str, *answers: tuple[float, int, int], num_failed: int = 0) -> Score:
    """(TTFT, prompt tokens, cached tokens) of requests that were sent a second apart."""
    it = Score(name, num_failed)
    for at, (ttft_s, num_tokens, cached) in enumerate(answers):
        it.answered(float(at), ttft_s, num_tokens, cached)
    return it


OURS = score("kvgate", (0.2, 100, 80), (0.4, 100, 90), (2.0, 100, 10))
OTHER = score("round robin", (0.8, 100, 0), (4.0, 100, 50), (6.0, 100, 10), num_failed=1)


def test_figures_follow_from_the_answers() -> None:
    assert OURS.hit_rate == pytest.approx(0.6)
    assert OURS.computed_tokens == 120
    assert OURS.good == pytest.approx(2 / 3)
    assert OTHER.good == pytest.approx(1 / 4)  # what failed has no first token
    assert (OURS.ttft(50), OURS.ttft(90)) == (0.4, 2.0)


def test_a_side_without_answers_has_figures_too() -> None:
    empty = Score("kvgate")
    assert (empty.hit_rate, empty.good, empty.ttft(90)) == (0.0, 0.0, 0.0)
    assert summary(empty, OTHER) == "no request was answered yet"


def test_curves_are_in_order_and_by_time() -> None:
    curves = OURS.curves(num_points=2)
    assert list(curves.ttft_s) == [0.2, 0.4, 2.0]
    assert list(curves.hits) == [pytest.approx(0.8), pytest.approx(0.5)]


def test_the_table_has_a_column_for_each_side() -> None:
    assert [line.split() for line in lines((OURS, OTHER))] == [
        ["kvgate", "round", "robin"],
        ["requests", "answered", "3", "3"],
        ["requests", "failed", "0", "1"],
        ["prompt", "tokens", "cached", "60.0%", "20.0%"],
        ["prompt", "tokens", "computed", "120", "240"],
        ["TTFT", "p50", "0.40", "s", "4.00", "s"],
        ["TTFT", "p90", "2.00", "s", "6.00", "s"],
        ["within", "1", "s", "66.7%", "25.0%"],
    ]


def test_the_summary_says_what_was_saved() -> None:
    words = "saved 50% of prefill; TTFT p90 3.0× sooner; 67% of 3 requests within 1 s (by round robin: 25%)"
    words += "; failed 0 (by round robin: 1)"
    assert summary(OURS, OTHER) == words
    assert one_line(OURS, OTHER).startswith(
        "3 requests: cached 60% against 20% by round robin, TTFT p90 2.00 s"
    )


def test_the_summary_does_not_hide_a_loss() -> None:
    words = "computed 100% more of the prompts; TTFT p90 3.0× later;"
    assert summary(OTHER, OURS).startswith(words)


def test_requests_of_the_warm_up_are_not_scored() -> None:
    """All caches are empty then: neither side could do better."""
    ours, other = (Score(name, warm_up_s=10.0) for name in ("kvgate", "round robin"))
    for each in (ours, other):
        each.answered(0.0, 5.0, 100, 0)
        each.failed(9.9)
    assert (ours.num_answered, ours.num_failed, ours.num_warming, ours.is_warming) == (0, 0, 2, True)
    assert one_line(ours, other) == "warming up: 2 requests; those after 10 s are compared"
    assert summary(ours, other).startswith("no comparison: the first 10 s")
    assert lines((ours, other))[0].startswith("warming up")
    for each in (ours, other):
        each.answered(10.0, 0.1, 100, 90)
        each.failed(11.0)
    assert (ours.num_answered, ours.num_failed, ours.hit_rate, ours.good) == (1, 1, 0.9, 0.5)
    assert one_line(ours, other).endswith("; failed 1 against 1")
    assert "warming" not in lines((ours, other))[0]
