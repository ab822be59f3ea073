"""NIXL's parameters in requests and prefill's responses; shapes as in vLLM 0.32."""

from typing import Any

import pytest

from engines.sim.pd.leg import Leg, Source
from engines.sim.pd.nixl import ChannelAddress, read, transfer_params

PREFILL_PARAMS = transfer_params(ChannelAddress("e", "127.0.0.1", 5600, 1), "cmpl-x-0-ab", [4, 5], 20, 16)


def test_prefill_responds_with_its_parameters() -> None:
    assert PREFILL_PARAMS == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[4, 5]],
        "remote_engine_id": "e",
        "remote_request_id": "cmpl-x-0-ab",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 20,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 16,
    }


def test_decode_reads_a_leg_from_the_parameters() -> None:
    source = Source("127.0.0.1", 5600, "cmpl-x-0-ab", "e")
    assert read({"kv_transfer_params": PREFILL_PARAMS}) == Leg(
        fetches=True, source=source, reported_cached_tokens=16
    )


@pytest.mark.parametrize(
    "name", ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"]
)
def test_a_missing_field_leaves_nothing_to_fetch(name: str) -> None:
    leg = read({"kv_transfer_params": PREFILL_PARAMS | {name: None}})
    assert leg is not None and leg.fetches and leg.source is None


@pytest.mark.parametrize("params", [None, {}, "x", {"prompt_token_ids": [1]}, {"do_remote_decode": False}])
def test_other_parameters_are_no_leg(params: Any) -> None:
    assert read({"kv_transfer_params": params}) is None


def test_a_prefill_request_is_recognized() -> None:
    assert read({"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}) == Leg(
        pins=True
    )
