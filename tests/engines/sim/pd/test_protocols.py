"""Protocols of requests, and the parameters in prefill's response."""

from pathlib import Path

import pytest

from engines.sim import SimConfig
from engines.sim.params import ApiError
from engines.sim.pd.leg import Leg, Source
from engines.sim.pd.protocols import read_leg

PREFILL = {"kv_transfer_params": {"do_remote_decode": True}}


def test_a_worker_without_a_role_ignores_parameters() -> None:
    assert read_leg(PREFILL, SimConfig()) is None


def test_nixl_ignores_the_role() -> None:
    for role in ("prefill", "decode", "both"):
        assert read_leg(PREFILL, SimConfig(pd_role=role)) == Leg(pins=True)


def test_each_protocol_reads_its_own_fields() -> None:
    context = {"disaggregated_params": {"request_type": "context_only"}}
    body = PREFILL | context | {"bootstrap_room": 5, "bootstrap_host": "h"}
    sglang, trtllm = (
        read_leg(body, SimConfig(pd_role="decode", pd_protocol=name)) for name in ("sglang", "trtllm")
    )
    assert sglang is not None and sglang.source == Source("h", 8998, "5", may_wait=True)
    assert trtllm == Leg(pins=True, only_first_token=True)
    with pytest.raises(ApiError, match="EngineCore"):
        read_leg(body, SimConfig(pd_role="decode", pd_protocol="mooncake"))


def test_with_storage_each_request_is_a_leg(tmp_path: Path) -> None:
    config = SimConfig(pd_role="both", pd_protocol="shared_storage", pd_store=tmp_path)
    assert read_leg({}, config) == Leg(store=tmp_path)
