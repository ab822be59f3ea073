"""Gauges of vLLM per rank; tests/engines/test_vllm_http.py has whole pages of real engines."""

from engines.vllm_metrics import parse_metrics

PAGE = """
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 1.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1.0
process_start_time_seconds 12.5
"""


def test_facts_declared_for_all_ranks_are_shared() -> None:
    ranks = parse_metrics(PAGE)
    assert [(rank, each.num_requests_running, each.num_gpu_blocks) for rank, each in ranks.items()] == [
        (0, 3, 500),
        (1, 1, 500),
    ]
    assert {each.start_time_s for each in ranks.values()} == {12.5}


def test_a_page_without_gauges_has_no_ranks() -> None:
    assert parse_metrics("go_threads 7\n") == {}
