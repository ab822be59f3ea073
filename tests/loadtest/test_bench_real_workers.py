import json

from gateway.demo.score import Score
from loadtest.bench_real_workers import Run, figures, is_ready, line, requests_of, run_of

METRICS = """kvgate_prediction_exact_ratio{worker="a"} 1.0
kvgate_prediction_exact_ratio{worker="b"} 0.5
kvgate_prediction_exact_ratio{worker="c"} NaN
kvgate_prediction_compared_tokens_total{worker="a"} 800
kvgate_decision_stage_duration_seconds_sum{stage="hash"} 0.004
kvgate_decision_stage_duration_seconds_count{stage="hash"} 2
kvgate_decision_stage_duration_seconds_sum{stage="policy"} 0.002
kvgate_decision_stage_duration_seconds_count{stage="policy"} 2
"""


def score(name: str, ttft_s: float, cached: int) -> Score:
    made = Score(name)
    made.answered(0.0, ttft_s, 1000, cached)
    return made


def test_traffic_is_the_same_for_each_policy_and_sped_up() -> None:
    once = list(requests_of("m", 10.0, 1.0, seed=3))
    twice = list(requests_of("m", 5.0, 2.0, seed=3))
    assert [request.body for request in once] == [request.body for request in twice]
    assert [request.at_s / 2 for request in once] == [request.at_s for request in twice]
    assert {request.body["model"] for request in once} == {"m"}
    assert 0.0 < twice[-1].at_s < 5.0 < once[-1].at_s < 10.0


def test_hot_traffic_shares_one_system_prompt() -> None:
    bodies = [request.body for request in requests_of("m", 60.0, 1.0, seed=3, kind="hot")]
    systems = [body["messages"][0]["content"] for body in bodies if len(body["messages"]) == 2]
    assert len(set(systems)) == 1
    assert 0.8 < len(systems) / len(bodies) < 1.0
    assert len({body["messages"][-1]["content"] for body in bodies}) == len(bodies) > 200


def test_predictions_and_decisions_come_from_the_gateways_metrics() -> None:
    run = run_of(Score("expected_ttft"), METRICS)
    assert (run.exact, round(run.decide_ms, 6)) == (0.75, 3.0)
    assert run_of(Score("round_robin"), "") == Run(Score("round_robin"), None, 0.0)


def test_figures_compare_the_first_policy_with_the_others_round_by_round() -> None:
    ours = [Run(score("ours", ttft_s, 800), 1.0, 0.5) for ttft_s in (0.1, 0.2)]
    theirs = [Run(score("theirs", ttft_s, 200), None, 0.5) for ttft_s in (0.4, 0.4)]
    found = {figure.name: figure for figure in figures({"ours": ours, "theirs": theirs})}
    assert found["ours.ttft_p90_over.theirs"].rounds == [0.25, 0.5]
    assert found["ours.computed_over.theirs"].value == 0.25
    assert (found["ours.hit_rate"].value, found["theirs.hit_rate"].value) == (0.8, 0.2)
    assert found["ours.exact"].value == 1.0 and "theirs.exact" not in found


def test_a_line_names_the_figures_of_a_run() -> None:
    text = line("ours", Run(score("ours", 0.25, 800), 0.5, 0.4))
    assert "1 answered, 0 failed" in text and "p90 0.250 s" in text and "cached 80.0%" in text
    assert text.endswith("predictions exact 50.0%")
    assert "exact" not in line("theirs", Run(score("theirs", 0.25, 800), None, 0.4))


def test_workers_are_ready_when_each_is_up_with_an_exact_stream() -> None:
    def view(*streams: str | None) -> str:
        workers = [[{"is_up": True, "stream": stream}] for stream in streams]
        return json.dumps({"endpoints": [{"workers": each} for each in workers]})

    assert is_ready(view("exact", None), 2)
    assert not is_ready(view("exact", "blind"), 2)
    assert not is_ready(view("exact"), 2)
    assert not is_ready(json.dumps({"endpoints": [{"workers": []}]}), 1)
