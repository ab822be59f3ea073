"""vLLM's MooncakeConnector (0.32): a transfer id of the gateway's ties the legs, which may come at once."""

from typing import Any

from engines.sim.params import ApiError
from engines.sim.pd.leg import Leg, Source

NEEDED = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")


def read(body: dict[str, Any], role: str) -> Leg | None:
    """Parse a leg. Raises ApiError for a leg that is not its role's: there vLLM's engine ends."""
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict):
        return None
    if params.get("do_remote_prefill"):
        _check(role, "prefill")
        return Leg(fetches=True, source=_source(params), reported_cached_tokens=_cached(params))
    if params.get("do_remote_decode"):
        _check(role, "decode")
        return Leg(pins=True, key=str(params["transfer_id"])) if params.get("transfer_id") else None
    return None


def _check(role: str, wrong: str) -> None:
    if role == wrong:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        raise ApiError(message, status=500, kind="InternalServerError")


def _source(params: dict[str, Any]) -> Source | None:
    """Source of a decode leg. Without one of the fields vLLM warns, transfers nothing, and waits for it."""
    if any(params.get(name) is None for name in NEEDED):
        return None
    engine_id, bootstrap, key = (str(params[name]) for name in NEEDED)
    return Source("", 0, key, engine_id, may_wait=True, bootstrap=bootstrap)


def _cached(params: dict[str, Any]) -> int | None:
    given = params.get("remote_prefill_cached_tokens")
    return given if isinstance(given, int) else None


def query_response(engine_id: str, host: str, port: int, dp_size: int) -> dict[str, Any]:
    """Response of `GET /query` at the bootstrap port."""
    address = {"0": {"0": f"tcp://{host}:{port}"}}
    return {str(rank): {"engine_id": engine_id, "worker_addr": address} for rank in range(dp_size)}


def found(answer: Any, engine_id: str) -> tuple[str, int] | None:
    """Address of an engine's blocks, from the response of its bootstrap port."""
    for entry in answer.values():
        if entry["engine_id"] == engine_id:
            host, _, port = entry["worker_addr"]["0"]["0"].removeprefix("tcp://").rpartition(":")
            return host, int(port)
    return None
