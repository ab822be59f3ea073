"""Figures that a worker reports, over all engines: impossible ones are discarded."""

import math
from dataclasses import fields
from typing import Any

import pytest

from engines import ENGINES
from gateway.core import figure_bounds
from gateway.core.engine import EngineInfo, EngineMetrics, ModelInfo
from gateway.core.kv_events import DecodeError
from gateway.discovery.probed import reported
from tests.support.engine_data import engine_data


def test_every_figure_has_bounds() -> None:
    assert {each.name for each in fields(EngineMetrics)} == {*figure_bounds.FIGURES, "refused"}


@pytest.mark.parametrize("name", figure_bounds.FIGURES)
def test_a_figure_out_of_bounds_counts_as_not_reported(name: str) -> None:
    lowest, highest = figure_bounds.FIGURES[name]
    for value in (lowest, highest, (lowest + highest) / 2):
        good: dict[str, Any] = {name: value}
        metrics = EngineMetrics(**good)
        assert (getattr(metrics, name), metrics.refused) == (value, ())
    for value in (lowest - 1, highest * 2, -1e300, 1e300, math.nan, math.inf, -math.inf, 10**400, -(10**400)):
        bad: dict[str, Any] = {name: value}
        metrics = EngineMetrics(**bad)
        assert (getattr(metrics, name), metrics.refused) == (None, (name,)), value


def test_a_cache_that_is_more_than_full_is_full() -> None:
    assert reported(EngineMetrics(kv_cache_usage=1.003)).kv_usage == 1.0
    assert reported(EngineMetrics(kv_cache_usage=-0.1)).kv_usage == 0.0


@pytest.mark.parametrize("length", [0, -1, 1 << 28, 10**400])
def test_lengths_of_models_are_bounded(length: int) -> None:
    assert ModelInfo("m", max_model_len=length).max_model_len is None
    assert ModelInfo("m", max_model_len=8192).max_model_len == 8192


@pytest.mark.parametrize("version", ["", "x" * 65, "1.0\nworker evil: joined", "9" * 5000])
def test_versions_are_bounded(version: str) -> None:
    assert EngineInfo(version=version).version is None
    assert EngineInfo(version="0.5.23+cu128").version == "0.5.23+cu128"


@pytest.mark.parametrize("value", ["-1", "-1e300", "1e300", "1e308", "NaN", "+Inf", "-Inf", "1e400", "x"])
@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_pages_are_bounded(engine: str, value: str) -> None:
    page = engine_data()[engine].page_of(value) * 3
    for metrics in ENGINES[engine].parse_metrics(page).values():
        for name, (lowest, highest) in figure_bounds.FIGURES.items():
            figure = getattr(metrics, name)
            assert figure is None or lowest <= figure <= highest


@pytest.mark.parametrize("label", ["0", "-16", "16.5", "1e9", "9" * 18, "x", ""])
def test_labels_of_vllm_are_bounded(label: str) -> None:
    page = f'vllm:cache_config_info{{block_size="{label}",engine="0",num_gpu_blocks="{label}"}} 1\n'
    for metrics in ENGINES["vllm"].parse_metrics(page).values():
        assert metrics.block_size is None
        assert metrics.num_gpu_blocks in (None, 0)


@pytest.mark.parametrize(
    "info",
    [
        *(b'{"page_size":-1}', b'{"page_size":99999999999}', b'{"page_size":16,"max_total_num_tokens":-5}'),
        *(
            b'{"page_size":16,"max_total_num_tokens":1' + b"0" * 400 + b"}",
            b'{"page_size":1' + b"0" * 400 + b"}",
        ),
    ],
)
def test_sizes_of_sglang_are_bounded(info: bytes) -> None:
    (rank,) = ENGINES["sglang"].parse_info(info).ranks.values()
    assert rank.block_size in (None, 16)
    assert rank.num_gpu_blocks is None and rank.kv_cache_size_tokens is None


@pytest.mark.parametrize("num", [b"1025", b"1000000000", b"1" + b"0" * 400])
def test_ranks_of_sglang_are_bounded(num: bytes) -> None:
    for info in (b'{"dp_size":%b}', b'{"kv_events":{"dp_size":%b}}'):
        with pytest.raises(DecodeError, match="data-parallel ranks"):
            ENGINES["sglang"].parse_info(info % num)
    assert len(ENGINES["sglang"].parse_info(b'{"version":"0.5.23","dp_size":-5}').ranks) == 1


@pytest.mark.parametrize("port", [b"0", b"-1", b"65536", b"1" + b"0" * 400])
def test_ports_of_sglang_are_bounded(port: bytes) -> None:
    info = ENGINES["sglang"].parse_info(
        b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":%b}' % port
    )
    assert info.transfer is not None and info.transfer.address == "*:8998"


@pytest.mark.parametrize("value", [b"-1", b"99999999999", b"1" + b"0" * 400])
def test_sizes_of_trtllm_are_bounded(value: bytes) -> None:
    steps = b'[{"kvCacheStats":{"tokensPerBlock":%b,"maxNumBlocks":%b}}]' % (value, value)
    (rank,) = ENGINES["trtllm"].parse_info(steps).ranks.values()
    assert (rank.block_size, rank.num_gpu_blocks) == (None, None)
