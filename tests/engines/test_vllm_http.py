"""Responses of a vLLM worker over HTTP: metrics, models, event sources; and the recommended flags."""

import json
import shlex

import pytest

from engines.vllm import Vllm
from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.kv_events import DecodeError
from tests import DATA

CAPTURES = DATA / "vllm_captures"
VLLM = Vllm()


def test_metrics_of_a_worker_are_read() -> None:
    text = (CAPTURES / "metrics_aggregated.txt").read_text()
    assert VLLM.parse_metrics(text) == {
        0: EngineMetrics(
            num_requests_running=0,
            num_requests_waiting=0,
            kv_cache_usage=0.0,
            block_size=128,
            num_gpu_blocks=682,
            kv_cache_size_tokens=87296,
            prefix_cache_queries_total=1742,
            prefix_cache_hits_total=512,
            start_time_s=1795208188.49,
            step_tokens_total=1898.0,
        )
    }


def test_metrics_of_a_decode_worker_are_read() -> None:
    metrics = VLLM.parse_metrics((CAPTURES / "metrics_decode.txt").read_text())[0]
    assert (metrics.block_size, metrics.num_gpu_blocks) == (32, 4096)
    assert (metrics.prefix_cache_queries_total, metrics.prefix_cache_hits_total) == (18666, 6176)


def test_metrics_of_two_ranks_are_read() -> None:
    text = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m, engine=\\"7\\" } x"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:num_requests_waiting{model_name="m",engine="1"} 1e1
vllm:cache_config_info{block_size="16",engine="1",kv_cache_size_tokens="160",num_gpu_blocks="20"} 1.0
vllm:cache_config_info{block_size="None",engine="0",kv_cache_size_tokens="None"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
process_start_time_seconds 12.5"""
    assert VLLM.parse_metrics(text) == {
        0: EngineMetrics(num_requests_running=3, start_time_s=12.5),
        1: EngineMetrics(
            num_requests_running=4,
            num_requests_waiting=10,
            kv_cache_usage=0.25,
            block_size=16,
            num_gpu_blocks=10,  # published as the sum over the ranks
            kv_cache_size_tokens=160,
            start_time_s=12.5,
        ),
    }


def test_metrics_of_an_old_version_are_read() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_requests_running{model_name="m"} bad\n'
    assert VLLM.parse_metrics(text) == {0: EngineMetrics(kv_cache_usage=0.5)}


def test_models_with_an_adapter_are_read() -> None:
    body = b"""{"object":"list","data":[
        {"id":"m","object":"model","root":"/models/m","parent":null,"max_model_len":8192,"permission":[]},
        {"id":"a","object":"model","root":"/adapters/a","parent":"m","max_model_len":null},
        {"id":"bare"}]}"""
    assert VLLM.parse_models(body) == (
        ModelInfo("m", "/models/m", None, 8192),
        ModelInfo("a", "/adapters/a", "m", None),
        ModelInfo("bare"),
    )


def test_event_sources_are_read() -> None:
    body = b"""{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558",
        "replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""},
        "0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557",
        "replay_endpoint":"tcp://*:6557","topic":"kv"},
        "2":{"enable_kv_cache_events":true,"publisher":"null","endpoint":"tcp://*:5559"}}"""
    assert VLLM.parse_event_sources(body) == (
        EventSource(0, "tcp://127.0.0.1:5557", "tcp://*:6557", "kv"),
        EventSource(1, "tcp://*:5558", None, ""),
    )
    assert VLLM.parse_event_sources(b"{}") == ()


def test_the_version_is_read() -> None:
    assert VLLM.parse_version(b'{"version":"0.32.0"}') == "0.32.0"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'{"data":[{}]}', b'{"0":{}}', b"<html>", b'{"x":"\xff"}']
)
def test_malformed_answers_are_rejected_with_their_path(body: bytes) -> None:
    with pytest.raises(DecodeError, match="vllm /v1/models: "):
        VLLM.parse_models(body)
    with pytest.raises(DecodeError, match="vllm /kv_event_sources: "):
        VLLM.parse_event_sources(body)
    with pytest.raises(DecodeError, match="vllm /version: "):
        VLLM.parse_version(body)


def test_the_events_flag_is_one_shell_word_of_json() -> None:
    flag, value = shlex.split(VLLM.flags.events)
    assert flag == "--kv-events-config"
    config = json.loads(value)
    assert config["enable_kv_cache_events"] is True
    assert "*" in config["endpoint"], "without it vLLM connects and does not bind"
    assert config["replay_endpoint"]
