"""llama.cpp's server. The bodies are those of b11434, shortened."""

import pytest

from engines.llamacpp import LlamaCpp
from gateway.core.engine import EngineMetrics
from gateway.core.kv_events import DecodeError

LLAMA = LlamaCpp()

PAGE = """# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 250
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 750
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 99.5
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
"""
MODELS = (
    b'{"models":[{"name":"m","model":"m"}],"object":"list","data":[{"id":"m","aliases":[],"object":"model",'
    b'"owned_by":"llamacpp","meta":{"vocab_type":2,"n_vocab":8192,"n_ctx":4096,"n_ctx_train":8192}}]}'
)
PROPS = (
    b'{"default_generation_settings":{"params":{},"n_ctx":4096},"total_slots":2,"model_alias":"m",'
    b'"build_info":"b11434-abc"}'
)


def test_load_and_cached_tokens_are_read() -> None:
    metrics = LLAMA.parse_metrics(PAGE)[0]
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (2, 5)
    assert (metrics.prefix_cache_queries_total, metrics.prefix_cache_hits_total) == (1000, 750)
    assert metrics.kv_cache_usage is None


def test_older_versions_report_the_usage_of_the_cache() -> None:
    page = "llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:requests_processing 1\n"
    assert LLAMA.parse_metrics(page) == {0: EngineMetrics(num_requests_running=1, kv_cache_usage=0.25)}


def test_the_context_is_that_of_a_slot() -> None:
    (model,) = LLAMA.parse_models(MODELS)
    assert (model.id, model.max_model_len) == ("m", 4096)


def test_slots_and_their_context_are_the_size_of_the_cache() -> None:
    info = LLAMA.parse_info(PROPS)
    assert info.version == "b11434-abc"
    assert info.ranks[0].kv_cache_size_tokens == 8192
    assert info.ranks[0].num_gpu_blocks == 512


def test_a_server_without_props_has_no_size() -> None:
    assert LLAMA.parse_info(None).ranks[0] == EngineMetrics(block_size=16)
    with pytest.raises(DecodeError, match="llamacpp /props"):
        LLAMA.parse_info(b"[]")
