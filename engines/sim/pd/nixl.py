"""vLLM's NixlConnector (0.32): prefill responds with parameters, decode gets them unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.sim.pd.leg import Leg, Source

NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""Required parameters: without one of these vLLM warns, transfers nothing, and waits for it."""


def read(body: dict[str, Any]) -> Leg | None:
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict):
        return None
    if params.get("do_remote_prefill"):
        return Leg(fetches=True, source=_source(params), reported_cached_tokens=_cached(params))
    return Leg(pins=True) if params.get("do_remote_decode") else None


def _source(params: dict[str, Any]) -> Source | None:
    if not params.get("remote_block_ids") or any(params.get(name) is None for name in NEEDED):
        return None
    engine_id, key, host, port = (params[name] for name in NEEDED)
    return Source(str(host), int(port), str(key), str(engine_id))


def _cached(params: dict[str, Any]) -> int | None:
    given = params.get("remote_prefill_cached_tokens")
    return given if isinstance(given, int) else None


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Address at which this worker's blocks are fetched."""

    engine_id: str
    host: str
    port: int
    tp_size: int


def transfer_params(
    place: ChannelAddress, key: str, block_ids: Sequence[int], num_tokens: int, cached: int
) -> dict[str, Any]:
    """Field `kv_transfer_params` of prefill's response."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(block_ids)],
        "remote_engine_id": place.engine_id,
        "remote_request_id": key,
        "remote_host": place.host,
        "remote_port": place.port,
        "tp_size": place.tp_size,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": num_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached,
    }
