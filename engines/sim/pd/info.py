"""Worker's report of its role before any request: `/server_info`, and lines of `/metrics`."""

from collections.abc import Iterator
from typing import Any

from engines.sim.config import SimConfig
from engines.sim.pd.transfers import Transfers

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector", "shared_storage": "ExampleConnector"}
OWNERS = {"sglang": "sglang", "trtllm": "tensorrt_llm"}
"""Owner of the models in a model list, by protocol, where that is not vLLM."""
SGLANG_VERSION = "0.5.23"
STAGES = ("waiting_to_start", "in_progress", "completed_waiting")


def server_info(config: SimConfig, transfers: Transfers | None) -> dict[str, Any]:
    if config.pd_protocol == "sglang":
        return _sglang_info(config, transfers)
    if config.pd_protocol == "trtllm":  # which does not report its role
        return {"disaggregated_params": {"ctx_dp_rank": 0, "ctx_info_endpoint": []} if transfers else None}
    return _vllm_info(config, transfers)


def _sglang_info(config: SimConfig, transfers: Transfers | None) -> dict[str, Any]:
    return {
        "version": SGLANG_VERSION,
        "served_model_name": config.model,
        "page_size": config.block_size,
        "dp_size": config.dp_size,
        "tp_size": config.tp_size,
        "kv_cache_dtype": config.cache_dtype,
        "max_total_num_tokens": config.kv_blocks * config.block_size,
        "max_running_requests": config.max_num_seqs,
        "disaggregation_mode": config.pd_role or "null",
        "disaggregation_bootstrap_port": transfers.port if transfers else 8998,
        "disaggregation_transfer_backend": "mooncake",
    }


def _vllm_info(config: SimConfig, transfers: Transfers | None) -> dict[str, Any]:
    """Disaggregation part of `/server_info?config_format=json`."""
    ports = {}
    if transfers is not None and config.pd_protocol == "nixl":
        ports = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": config.host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": transfers.port,
        }
    elif transfers is not None and transfers.bootstrap_port:
        ports = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": transfers.bootstrap_port}
    return {
        "vllm_config": {
            "model_config": {"model": config.model, "max_model_len": config.context_tokens},
            "cache_config": {
                "block_size": config.block_size,
                "cache_dtype": config.cache_dtype,
                "num_gpu_blocks": config.kv_blocks,
            },
            "parallel_config": {
                "tensor_parallel_size": config.tp_size,
                "pipeline_parallel_size": 1,
                "data_parallel_size": config.dp_size,
                "decode_context_parallel_size": 1,
            },
            "scheduler_config": {"max_num_seqs": config.max_num_seqs},
            "kv_transfer_config": _kv_transfer_config(config, transfers),
        },
        "vllm_env": ports | {"VLLM_SERVER_DEV_MODE": True},
        "system_env": {},
    }


def _kv_transfer_config(config: SimConfig, transfers: Transfers | None) -> dict[str, Any] | None:
    connector = CONNECTORS.get(config.pd_protocol)
    if transfers is None or connector is None:
        return None
    store = config.pd_store if config.pd_protocol == "shared_storage" else None
    return {
        "kv_connector": connector,
        "engine_id": transfers.engine_id,
        "kv_buffer_device": "cpu",
        "kv_role": KV_ROLES[config.pd_role],
        "kv_port": 14579,
        "kv_connector_extra_config": {"shared_storage_path": str(store)} if store else {},
        "kv_connector_module_path": None,
        "enable_permute_local_kv": False,
        "kv_load_failure_policy": config.kv_load_failure,
    }


def metric_lines(config: SimConfig, transfers: Transfers) -> Iterator[str]:
    """Metrics of transfers: vLLM's, and the simulator's own (`sim_`). All transfers are counted at rank 0."""
    labels = f'engine="0",model_name="{config.model}"'
    leases = transfers.leases
    yield from _line("sim_pd_pinned_blocks", "gauge", labels, leases.num_pinned_blocks)
    yield from _line("sim_pd_late_fetches_total", "counter", labels, leases.num_late)
    if config.pd_protocol == "nixl":
        yield "# TYPE vllm:nixl_xfer_time_seconds histogram"
        yield f'vllm:nixl_xfer_time_seconds_bucket{{{labels},le="+Inf"}} {float(transfers.num_loaded)}'
        yield f"vllm:nixl_xfer_time_seconds_count{{{labels}}} {float(transfers.num_loaded)}"
        yield f"vllm:nixl_xfer_time_seconds_sum{{{labels}}} {transfers.seconds}"
        counts = {
            "num_failed_transfers": transfers.num_failed,
            "num_kv_expired_reqs": leases.num_expired,
            "num_notifications_after_expiry": leases.num_late,
        }
        for name, count in counts.items():
            yield from _line(f"vllm:nixl_{name}_total", "counter", labels, count)
    if config.pd_role != "prefill" and config.pd_protocol in CONNECTORS:
        yield "# TYPE vllm:num_requests_kv_fetch_by_stage gauge"
        for stage in STAGES:
            count = transfers.num_loading if stage == "in_progress" else 0
            yield f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="{stage}"}} {float(count)}'


def _line(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)}"
