"""Context only, then generation with a response that begins with the context's token."""

from typing import Any

import pytest
from aiohttp import ClientSession

from engines.sim import Sim
from engines.sim.params import FlatError
from engines.sim.pd.trtllm import read
from tests.engines.sim.conftest import StartSim
from tests.engines.sim.pd.conftest import get, post, text_of

FIELDS = {"pd_protocol": "trtllm", "transfer_latency_s": 0.001}
CONTEXT = {"request_type": "context_only", "disagg_request_id": 42}


async def pair(start_sim: StartSim, **fields: Any) -> tuple[Sim, Sim]:
    common = FIELDS | fields
    return await start_sim(pd_role="prefill", **common), await start_sim(pd_role="decode", **common)


async def generation(http: ClientSession, prefill: Sim) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer of the context, and the fields of the request that follows."""
    status, answer = await post(http, prefill, disaggregated_params=CONTEXT)
    assert status == 200, answer
    params = answer["choices"][0]["disaggregated_params"]
    usage = {"ctx_usage": answer["usage"]}
    follows = {"disaggregated_params": params | usage | {"request_type": "generation_only"}}
    return answer, follows | {"prompt": answer["prompt_token_ids"]}


async def test_context_then_generation_gives_the_answer_of_one_worker(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim)
    alone = await start_sim()
    first, follows = await generation(http, prefill)
    params = first["choices"][0]["disaggregated_params"]
    assert (params["ctx_request_id"], params["disagg_request_id"]) == (42, 42)
    assert first["usage"]["completion_tokens"] == 1, "whatever length it asked for"
    status, answer = await post(http, decode, **follows)
    _, whole = await post(http, alone, return_token_ids=True)
    assert (status, text_of(answer)) == (200, text_of(whole))
    assert params["first_gen_tokens"] == whole["choices"][0]["token_ids"][:1]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "the context's"


async def test_a_chat_is_passed_on_as_tokens(start_sim: StartSim, http: ClientSession) -> None:
    prefill, decode = await pair(start_sim)
    chat = {"messages": [{"role": "user", "content": "show me " * 30}], "prompt": None}
    path = "/v1/chat/completions"
    _, first = await post(http, prefill, path, **chat, disaggregated_params=CONTEXT)
    params = first["choices"][0]["disaggregated_params"] | {"request_type": "generation_only"}
    tokens = {"prompt_token_ids": first["prompt_token_ids"]}
    status, answer = await post(
        http, decode, path, **chat | {"messages": [{"role": "user", "content": "?"}]}, **tokens,
        disaggregated_params=params,
    )  # fmt: skip
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert (await get(http, decode.url + "/sim/stats"))["pd"]["mismatched_loads"] == 0


async def test_an_unreachable_context_worker_fails_generation(
    start_sim: StartSim, http: ClientSession
) -> None:
    prefill, decode = await pair(start_sim, pull_timeout_s=0.2)
    _, follows = await generation(http, prefill)
    await prefill.stop()
    status, answer = await post(http, decode, **follows)
    assert (status, answer["object"]) == (500, "error")


async def test_plain_requests_are_served(start_sim: StartSim, http: ClientSession) -> None:
    for sim in await pair(start_sim):
        assert (await post(http, sim))[0] == 200
        whole = {"request_type": "context_and_generation"}
        assert (await post(http, sim, disaggregated_params=whole))[0] == 200


async def test_the_role_is_not_reported(start_sim: StartSim, http: ClientSession) -> None:
    first, second = [await get(http, sim.url + "/server_info") for sim in await pair(start_sim)]
    assert first == second == {"disaggregated_params": {"ctx_dp_rank": 0, "ctx_info_endpoint": []}}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"request_type": "half"}, "Unknown request type"),
        ({"request_type": "generation_only"}, "ctx_request_id"),
        ({"request_type": "generation_only", "ctx_request_id": 1, "encoded_opaque_state": "e30="}, "cannot"),
    ],
)
def test_invalid_parameters_are_rejected(params: dict[str, Any], says: str) -> None:
    with pytest.raises(FlatError, match=says):
        read({"disaggregated_params": params})


def test_without_its_state_generation_waits() -> None:
    leg = read({"disaggregated_params": {"request_type": "generation_only", "ctx_request_id": 1}})
    assert leg is not None and leg.fetches and leg.source is None
