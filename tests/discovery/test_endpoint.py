"""The process behind an endpoint, recognized from its answers."""

from dataclasses import replace
from typing import cast

from gateway.core.engine import EngineMetrics
from gateway.discovery.endpoint import FAILURES_TO_DOWN, Endpoint, has_gone_back, is_doubtful
from gateway.discovery.probe import Probe
from gateway.discovery.probed import Facts

RANK = EngineMetrics(start_time_s=None, prefix_cache_queries_total=100)


def endpoint(rank: EngineMetrics = RANK) -> Endpoint:
    facts = Facts("http://w:1", "vllm", (), {0: rank})
    return Endpoint("http://w:1", cast(Probe, None), facts=facts, last={0: rank})


def test_counters_that_fall_are_of_another_process() -> None:
    assert not has_gone_back(endpoint(), {0: replace(RANK, prefix_cache_queries_total=100)})
    assert has_gone_back(endpoint(), {0: replace(RANK, prefix_cache_queries_total=99)})


def test_a_start_time_overrides_counters() -> None:
    started = replace(RANK, start_time_s=1.0)
    assert not has_gone_back(endpoint(started), {0: replace(started, prefix_cache_queries_total=0)})


def test_an_endpoint_without_a_start_time_is_doubtful_after_it_was_down() -> None:
    was_down = endpoint()
    was_down.num_failures = FAILURES_TO_DOWN
    assert (is_doubtful(was_down), is_doubtful(endpoint())) == (True, False)
