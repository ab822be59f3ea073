"""What a request is, by protocol, and what prefill's answer tells beside its one token."""

from collections.abc import Callable
from typing import Any

from engines.sim.config import SimConfig
from engines.sim.pd import nixl
from engines.sim.pd.leg import Leg
from engines.sim.pd.transfers import Transfers
from engines.sim.scheduler import Sequence

Body = dict[str, Any]
READ: dict[str, Callable[[Body], Leg | None]] = {"nixl": nixl.read}


def read_leg(body: Body, config: SimConfig) -> Leg | None:
    """None for a request that is whole. Raises ApiError for what the engine refuses."""
    return READ[config.pd_protocol](body) if config.pd_role else None


def tell(data: Body, sequence: Sequence, transfers: Transfers, config: SimConfig) -> None:
    """Into prefill's answer, for the first of its sequences."""
    key = sequence.pins
    assert key is not None
    cached = sequence.num_cached_tokens or 0
    if config.pd_protocol == "nixl":
        place = nixl.Place(transfers.engine_id, config.host, transfers.port, config.tp_size)
        data["kv_transfer_params"] = nixl.told(place, key, sequence.pinned_ids, sequence.num_prompt, cached)
