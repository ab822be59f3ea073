"""Engines known by their OpenAI API only."""

import pytest

from engines.openai import BLOCK_SIZE, OpenAi
from gateway.core.engine import EngineInfo, EngineMetrics, ModelInfo
from gateway.core.kv_events import DecodeError

OPENAI = OpenAi()


@pytest.mark.parametrize(
    ("page", "running", "waiting", "usage"),
    [
        (  # LMDeploy
            'lmdeploy:num_requests_running{model_name="m"} 3.0\n'
            'lmdeploy:num_requests_waiting{model_name="m"} 2.0\n'
            'lmdeploy:gpu_cache_usage_perc{model_name="m"} 0.5\n',
            3,
            2,
            0.5,
        ),
        ("# TYPE tgi_queue_size gauge\ntgi_queue_size 7\n\ntgi_batch_current_size 8", 8, 7, None),
        ("tgi_batch_current_size 1", 1, None, None),
    ],
)
def test_load_of_several_engines_is_read(
    page: str, running: int, waiting: int | None, usage: float | None
) -> None:
    assert OPENAI.parse_metrics(page) == {0: EngineMetrics(running, waiting, usage)}


def test_models_may_have_few_fields() -> None:
    body = b'{"object":"list","data":[{"id":"llama3:8b","object":"model","created":1,"owned_by":"library"}]}'
    assert OPENAI.parse_models(body) == (ModelInfo("llama3:8b"),)
    with pytest.raises(DecodeError, match="openai /v1/models: "):
        OPENAI.parse_models(b"<html>")


def test_an_openai_engine_has_one_rank_without_events() -> None:
    assert OPENAI.parse_info(None) == EngineInfo(ranks={0: EngineMetrics(block_size=BLOCK_SIZE)}, sources=())
    assert OPENAI.parse_event_sources(b"") == ()


def test_events_are_rejected_with_the_reason() -> None:
    with pytest.raises(DecodeError, match="publishes no KV events"):
        OPENAI.decode([b"", b"\0" * 8, b"x"])
    with pytest.raises(DecodeError, match="publishes no KV events"):
        OPENAI.decode_replay([b"", b"\0" * 8, b"x"])
    with pytest.raises(DecodeError, match="publishes no KV events"):
        OPENAI.decode_poll(b"[]", 16, 0.0)
