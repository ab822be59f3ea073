"""TensorRT-LLM (1.x): context only, then generation from its response, beginning with its first token."""

import base64
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from engines.sim.params import FlatError
from engines.sim.pd.leg import Leg, Source


def read(body: dict[str, Any]) -> Leg | None:
    """Parse a leg. Raises FlatError for invalid parameters."""
    params = body.get("disaggregated_params")
    if not isinstance(params, dict):
        return None
    match str(params.get("request_type")).lower():
        case "context_only":
            request_id = params.get("disagg_request_id")
            return Leg(pins=True, key=None if request_id is None else str(request_id), only_first_token=True)
        case "generation_only":
            return Leg(fetches=True, source=_source(params), reported_cached_tokens=_cached(params))
        case "context_and_generation":
            return None
    kinds = "context_only, generation_only or context_and_generation"
    raise FlatError(f"Unknown request type: {params.get('request_type')}. Must be {kinds}")


def _source(params: dict[str, Any]) -> Source | None:
    """Source of a generation leg. Without the state it has no address to fetch from, and waits."""
    if params.get("ctx_request_id") is None:
        raise FlatError("disaggregated_params must have ctx_request_id for generation_only")
    state = params.get("encoded_opaque_state")
    if not state:
        return None
    try:
        place = msgspec.json.decode(base64.b64decode(state))
        return Source(place["host"], place["port"], place["key"], place["engine_id"])
    except (ValueError, KeyError, TypeError) as exc:
        raise FlatError("encoded_opaque_state cannot be read") from exc


def _cached(params: dict[str, Any]) -> int | None:
    usage = params.get("ctx_usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    given = details.get("cached_tokens")
    return given if isinstance(given, int) else None


def failed() -> FlatError:
    return FlatError("KV cache transfer failed", status=500, kind="InternalServerError")


def transfer_params(engine_id: str, host: str, port: int, key: str, first: Sequence[int]) -> dict[str, Any]:
    """Field `choices[0].disaggregated_params` of the context's response."""
    place = {"host": host, "port": port, "key": key, "engine_id": engine_id}
    number = int(key) if key.isdecimal() else crc32(key.encode())
    return {
        "request_type": "context_only",
        "first_gen_tokens": list(first),
        "ctx_request_id": number,
        "encoded_opaque_state": base64.b64encode(msgspec.json.encode(place)).decode(),
        "draft_tokens": None,
        "disagg_request_id": int(key) if key.isdecimal() else None,
        "ctx_dp_rank": 0,
        "ctx_info_endpoint": None,
        "schedule_style": 0,
    }
