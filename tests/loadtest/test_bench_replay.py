from gateway.replay.calibration import Error
from loadtest.bench_replay import figure


def test_points_and_shares_have_their_goals() -> None:
    hit = figure(Error("hit rate", 0.5, 0.46))
    assert (hit.name, hit.value, hit.unit, hit.verdict) == ("replay.error.hit_rate", 4.0, "points", "MISSED")
    ttft = figure(Error("TTFT p90", 0.2, 0.18))
    assert (ttft.name, ttft.value, ttft.verdict) == ("replay.error.ttft_p90", 0.1, "met")
