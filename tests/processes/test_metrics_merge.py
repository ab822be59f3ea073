import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.processes.metrics_merge import merge, parse, sum_of, totals, write

ONE = """\
# HELP kvgate_worker_requests_total Requests, sent "so" \\n far
# TYPE kvgate_worker_requests_total counter
kvgate_worker_requests_total{worker="a b:1"} 3.0
kvgate_worker_requests_total{worker="c"} 1.0
# HELP kvgate_ttft_seconds TTFT
# TYPE kvgate_ttft_seconds histogram
kvgate_ttft_seconds_bucket{le="0.1"} 1.0
kvgate_ttft_seconds_bucket{le="+Inf"} 2.0
kvgate_ttft_seconds_count 2.0
kvgate_ttft_seconds_sum 0.5
# HELP kvgate_client_connections Open
# TYPE kvgate_client_connections gauge
kvgate_client_connections 4.0
# HELP kvgate_worker_requests_in_flight In flight
# TYPE kvgate_worker_requests_in_flight gauge
kvgate_worker_requests_in_flight{worker="c"} 5.0
# HELP kvgate_worker_up Up
# TYPE kvgate_worker_up gauge
kvgate_worker_up{worker="c"} 1.0
"""
OTHER = """\
# HELP kvgate_worker_requests_total Requests
# TYPE kvgate_worker_requests_total counter
kvgate_worker_requests_total{worker="a b:1"} 0.5
kvgate_worker_requests_total{worker="new"} 7.0
# HELP kvgate_ttft_seconds TTFT
# TYPE kvgate_ttft_seconds histogram
kvgate_ttft_seconds_bucket{le="0.1"} 0.0
kvgate_ttft_seconds_bucket{le="+Inf"} 1.0
kvgate_ttft_seconds_count 1.0
kvgate_ttft_seconds_sum 3.0
# HELP kvgate_client_connections Open
# TYPE kvgate_client_connections gauge
kvgate_client_connections 2.0
# HELP kvgate_worker_requests_in_flight In flight
# TYPE kvgate_worker_requests_in_flight gauge
kvgate_worker_requests_in_flight{worker="c"} 6.0
# HELP kvgate_worker_up Up
# TYPE kvgate_worker_up gauge
kvgate_worker_up{worker="c"} 0.0
"""


def samples(page: str) -> dict[tuple[str, ...], float]:
    """Samples as Prometheus reads them."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_counters_and_histograms_add_up_and_gauges_by_their_rule() -> None:
    assert samples(write(merge([parse(ONE), parse(OTHER)]))) == {
        ("kvgate_worker_requests_total", "a b:1"): 3.5,
        ("kvgate_worker_requests_total", "c"): 1,
        ("kvgate_worker_requests_total", "new"): 7,
        ("kvgate_ttft_seconds_bucket", "0.1"): 1,
        ("kvgate_ttft_seconds_bucket", "+Inf"): 3,
        ("kvgate_ttft_seconds_count",): 3,
        ("kvgate_ttft_seconds_sum",): 3.5,
        ("kvgate_client_connections",): 6,
        ("kvgate_worker_requests_in_flight", "c"): 6,
        ("kvgate_worker_up", "c"): 0,
    }


def test_a_single_page_is_unchanged() -> None:
    assert write(merge([parse(ONE)])) == ONE
    assert write(parse("")) == ""
    assert "x NaN" in write(parse("# HELP x y\n# TYPE x gauge\nx NaN\n"))


def test_totals_of_a_dead_process_stay_and_its_gauges_do_not() -> None:
    left = samples(write(totals(parse(ONE))))
    assert {name for name, *_ in left} == {
        "kvgate_worker_requests_total",
        "kvgate_ttft_seconds_bucket",
        "kvgate_ttft_seconds_count",
        "kvgate_ttft_seconds_sum",
    }


def test_pages_are_not_changed_by_a_merge() -> None:
    page = parse(ONE)
    merge([page, parse(OTHER)])
    assert write(page) == ONE


def test_a_sum_over_labels() -> None:
    assert sum_of(parse(ONE), "kvgate_worker_requests_total") == 4
    assert sum_of(parse(ONE), "kvgate_nothing") == 0


def test_a_malformed_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse("not a sample\n")


def test_the_longest_pause_is_that_of_all_processes() -> None:
    page = """# HELP {0} x
# TYPE {0} gauge
{0} {1}
"""
    names = {
        "kvgate_event_loop_lag_max_seconds": 0.5,
        "kvgate_gc_pause_max_seconds": 0.5,
        "kvgate_websocket_tunnels": 0.75,
    }
    for name, expected in names.items():
        merged = merge([parse(page.format(name, value)) for value in (0.25, 0.5)])
        assert samples(write(merged)) == {(name,): expected}
