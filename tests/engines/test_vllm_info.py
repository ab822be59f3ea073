import json
from typing import Any

import pytest

from engines.vllm import Vllm
from engines.vllm_info import parse_server_info
from gateway.core.engine import EngineInfo
from gateway.core.hit_rule import HitRule
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Transfer


def info(connector: str | None, role: str | None = "kv_both") -> bytes:
    config: dict[str, Any] = {
        "kv_connector": connector,
        "kv_role": role,
        "engine_id": "e",
        "kv_buffer_size": 1e9,
    }
    return json.dumps(
        {
            "vllm_config": {
                "kv_transfer_config": config if connector else None,
                "cache_config": {"cache_dtype": "auto", "block_size": 32},
                "parallel_config": {"tensor_parallel_size": 2},
            },
            "vllm_env": {},
        }
    ).encode()


@pytest.mark.parametrize(
    ("reported", "role"),
    [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", None), (None, None)],
)
def test_a_role_and_connector_are_read(reported: str | None, role: str | None) -> None:
    assert parse_server_info(info("NixlConnector", reported)) == EngineInfo(
        role=role, transfer=Transfer("nixl", engine_id="e", cache_dtype="auto", tensor_parallel=2)
    )


@pytest.mark.parametrize("connector", [None, "OffloadingConnector"])
def test_a_worker_with_another_connector_has_no_role(connector: str | None) -> None:
    assert parse_server_info(info(connector, "kv_producer")) == EngineInfo()


@pytest.mark.parametrize(
    "reported",
    [
        {"vllm_config": "model='m', speculative_config=None, tokenizer='m'"},  # 0.9, as text
        {"model_path": "m", "is_generation": True, "version": "0.23.0"},  # an engine like vLLM
    ],
)
def test_server_info_without_a_role_is_valid(reported: dict[str, Any]) -> None:
    assert parse_server_info(json.dumps(reported).encode()) == EngineInfo()


def test_server_info_is_optional_and_an_unreadable_one_is_reported() -> None:
    assert Vllm().parse_info(None) == EngineInfo()
    assert Vllm().parse_info(info("MooncakeConnector")).transfer is not None
    with pytest.raises(DecodeError, match="vllm /server_info"):
        Vllm().parse_info(b'{"vllm_config": 1}')


def speculating(method: object, connector: str | None = None, **more: object) -> HitRule:
    config: dict[str, Any] = {
        "kv_transfer_config": {"kv_connector": connector} if connector else None,
        "cache_config": {"cache_hit_alignment_tokens": more.pop("unit", None)},
        "speculative_config": method if not isinstance(method, str) else {"method": method, **more},
    }
    return parse_server_info(json.dumps({"vllm_config": config}).encode()).hit_rule


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (speculating(None), HitRule()),
        (speculating("ngram"), HitRule()),
        (speculating("eagle3"), HitRule(0, True, (0, 33))),
        (speculating("mtp", "NixlConnector"), HitRule(0, True)),
        (speculating("mtp", "OffloadingConnector"), HitRule(0, True)),
        (speculating("eagle", disable_eagle_block_drop=True), HitRule()),
        (speculating(None, unit=1056), HitRule(1056)),
        (speculating(None, unit="None"), HitRule()),
    ],
)
def test_speculation_and_match_units_make_the_hit_rule(rule: HitRule, expected: HitRule) -> None:
    assert rule == expected


def test_a_match_unit_beyond_any_engine_is_rejected() -> None:
    with pytest.raises(DecodeError):
        speculating(None, unit=1 << 40)


@pytest.mark.parametrize(
    ("scheduler", "max_running"),
    [({"max_num_seqs": 256}, 256), ({"max_num_seqs": 0}, None), ({}, None), (None, None), ("text", None)],
)
def test_the_concurrency_limit_is_read(scheduler: Any, max_running: int | None) -> None:
    for connector in ("NixlConnector", None):
        reported = json.loads(info(connector))
        reported["vllm_config"]["scheduler_config"] = scheduler
        assert parse_server_info(json.dumps(reported).encode()).max_running == max_running
