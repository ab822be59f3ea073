"""Legs of requests by protocol, and the transfer parameters in prefill's response."""

from typing import Any

from engines.sim.config import SimConfig
from engines.sim.job import HttpJob
from engines.sim.params import ApiError
from engines.sim.pd import mooncake, nixl, sglang, trtllm
from engines.sim.pd.leg import Leg
from engines.sim.pd.transfers import Transfers

Body = dict[str, Any]


def read_leg(body: Body, config: SimConfig) -> Leg | None:
    """Leg of a request, or None for a request that is whole. Raises ApiError for one that the engine
    rejects."""
    if not config.pd_role:
        return None
    match config.pd_protocol:
        case "nixl":
            return nixl.read(body)
        case "mooncake":
            return mooncake.read(body, config.pd_role)
        case "sglang":
            return sglang.read(body, config.pd_role)
        case "trtllm":
            return trtllm.read(body)
    return Leg(store=config.pd_store)


def add_transfer_params(data: Body, job: HttpJob, transfers: Transfers, config: SimConfig) -> None:
    """Add the transfer parameters to prefill's response, for the first of its choices."""
    sequence, choice = job.sequences[0], job.choices[0]
    key = sequence.pins
    assert key is not None
    if config.pd_protocol == "nixl":
        place = nixl.ChannelAddress(transfers.engine_id, config.host, transfers.port, config.tp_size)
        cached = sequence.num_cached_tokens or 0
        data["kv_transfer_params"] = nixl.transfer_params(
            place, key, sequence.pinned_ids, sequence.num_prompt, cached
        )
    elif config.pd_protocol == "trtllm":
        first = choice.answer.tokens[:1].tolist()
        params = trtllm.transfer_params(transfers.engine_id, config.host, transfers.port, key, first)
        data["choices"][0]["disaggregated_params"] = params
        data["prompt_token_ids"] = choice.prompt.tolist()


def load_failed(config: SimConfig, job: HttpJob) -> ApiError:
    """Error response to the client where a transfer failed."""
    match config.pd_protocol:
        case "sglang":
            return sglang.failed(config.pd_role, job.sequences[0].pins or "")
        case "trtllm":
            return trtllm.failed()
    return ApiError("Internal server error", status=500, kind="InternalServerError")
