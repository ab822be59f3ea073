"""Facts about disaggregation in vLLM that the gateway relies on, proved on running engines.

Without a gateway: both legs go straight to the engines. `docs/reference/vllm-disaggregation.md` has more
observations. Tests share the fleet, with prompts of their own; the last one kills and restarts engines.
"""

import json
import socket
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import zmq
from msgspec import msgpack

from engines import ENGINES
from engines.prometheus import series
from gateway.core.kv_events import BlocksStored, KvEvent
from tests import DATA
from tests.support.engine_process import wait_until
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import BLOCK, new_ids
from tests.vllm.pd import TIMEOUT_S, Body, PdFleet, completion, post, prefill_leg, side_channel

VLLM = ENGINES["vllm"]
SEEN = DATA / "vllm_pd"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FETCHING = "vllm:num_requests_kv_fetch_by_stage{"
PINNED = "vllm:kv_cache_usage_perc{"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total{"
FAILED = "vllm:nixl_num_failed_transfers_total{"
LATE = "vllm:nixl_num_notifications_after_expiry_total{"
RUNNING = "vllm:num_requests_running{"
INTERNAL = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}

_numbers = count(1)


def new_prompt(num_tokens: int = 200) -> list[int]:
    return new_ids(f"pd {next(_numbers)}", num_tokens)


def new_chat(max_tokens: int = 8, **fields: Any) -> Body:
    words = " ".join(f"number {number}" for number in new_prompt(60))
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": max_tokens}
    return body | {"temperature": 0, "ignore_eos": True} | fields


def answered(worker: VllmWorker, path: str, body: Body) -> Any:
    status, answer = post(worker, path, body)
    assert status == 200, answer
    return json.loads(answer)


def metric(worker: VllmWorker, name: str) -> float:
    return sum(value for _, value in series(worker.get("/metrics", TIMEOUT_S).decode(), name))


def pinned(worker: VllmWorker) -> float:
    """Share of blocks that requests pin, after a step of the engine, which updates the gauge."""
    worker.complete(new_prompt(8))
    return metric(worker, PINNED)


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def golden_answer(name: str) -> Any:
    return json.loads((SEEN / name).read_text())


@pytest.fixture(scope="module", autouse=True)
def num_expired(vllm_pd: PdFleet) -> float:
    """Expired leases before the tests; one more, of blocks that are never pulled, expires meanwhile."""
    before = metric(vllm_pd.prefill, EXPIRED)
    vllm_pd.parameters(completion(new_prompt(BLOCK)))
    return before


# facts known before any request ------------------------------------------------------------------


def test_metrics_show_the_connector_and_the_workers_that_pull(vllm_pd: PdFleet) -> None:
    has_nixl = [any(series(text, FAILED)) for text in vllm_pd.first_metrics]
    pulls = [any(series(text, FETCHING)) for text in vllm_pd.first_metrics]
    assert (has_nixl, pulls) == ([True, True, True], [False, True, True])
    assert [VLLM.parse_metrics(text)[0].block_size for text in vllm_pd.first_metrics] == [BLOCK] * 3


def test_server_info_has_role_failure_policy_and_side_channel(vllm_pd: PdFleet) -> None:
    transfers = []
    for worker in (vllm_pd.prefill, vllm_pd.failing):
        info = json.loads(worker.get("/server_info?config_format=json", TIMEOUT_S))
        transfer = info["vllm_config"]["kv_transfer_config"]
        transfers.append((transfer["kv_connector"], transfer["kv_role"], transfer["kv_load_failure_policy"]))
        assert transfer["engine_id"] == handshake(worker)[1]["engine_id"]
        assert side_channel(worker).endswith(f":{info['vllm_env']['VLLM_NIXL_SIDE_CHANNEL_PORT']}")
        assert info["vllm_config"]["parallel_config"]["tensor_parallel_size"] == 1
    assert transfers == [("NixlConnector", "kv_producer", "fail"), ("NixlConnector", "kv_consumer", "fail")]
    assert post(vllm_pd.recomputing, "/server_info", {})[0] == 404


def handshake(worker: VllmWorker) -> tuple[str, Any]:
    """Answer of a worker's side channel: the compatibility hash of a pair, and the engine's metadata."""
    with zmq.Context() as context, context.socket(zmq.REQ) as channel:
        channel.linger = 0
        channel.connect(side_channel(worker))
        channel.send(msgpack.encode([b"get_meta_msg", 0, 0]))
        assert channel.poll(int(TIMEOUT_S * 1000))
        metadata, _clock = channel.recv_multipart()
    payload = msgpack.decode(metadata)
    return payload["compatibility_hash"], msgpack.decode(payload["agent_metadata_bytes"])


def test_side_channel_shows_which_pairs_are_compatible(vllm_pd: PdFleet) -> None:
    hashes, engines = zip(*map(handshake, vllm_pd.workers), strict=True)
    assert len(set(hashes)) == 1
    assert len({engine["engine_id"] for engine in engines}) == 3
    assert {engine["block_size"] for engine in engines} == {BLOCK}


# the prefill leg ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "golden"),
    [
        (COMPLETIONS, completion(new_prompt(), 8), "completion_prefill.json"),
        (CHAT, new_chat(max_completion_tokens=1), "chat_prefill.json"),
    ],
)
def test_prefill_leg_is_answered_with_transfer_parameters(
    vllm_pd: PdFleet, path: str, body: Body, golden: str
) -> None:
    answer = answered(vllm_pd.prefill, path, prefill_leg(body))
    params = answer["kv_transfer_params"]
    assert params.keys() == golden_answer(golden)["kv_transfer_params"].keys()
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert params["remote_num_tokens"] == answer["usage"]["prompt_tokens"]
    assert params["remote_prefill_cached_tokens"] == cached(answer) == 0
    assert params["remote_request_id"].startswith(answer["id"])
    assert (params["remote_host"], f"tcp://127.0.0.1:{params['remote_port']}") == (
        "127.0.0.1",
        side_channel(vllm_pd.prefill),
    )
    again = answered(vllm_pd.prefill, path, prefill_leg(body))
    assert again["kv_transfer_params"]["remote_prefill_cached_tokens"] == cached(again) > 0


@pytest.mark.parametrize("role", ["prefill", "failing"])
def test_roles_do_not_restrict_requests(vllm_pd: PdFleet, role: str) -> None:
    worker = getattr(vllm_pd, role)
    body = completion(new_prompt())
    direct = answered(worker, COMPLETIONS, body)
    assert direct["kv_transfer_params"] is None
    other = vllm_pd.failing if worker is vllm_pd.prefill else vllm_pd.prefill
    params = answered(worker, COMPLETIONS, prefill_leg(body))["kv_transfer_params"]
    pulled = answered(other, COMPLETIONS, body | {"kv_transfer_params": params})
    assert pulled["choices"] == direct["choices"]


def test_streams_and_lists_of_prompts_lack_transfer_parameters(vllm_pd: PdFleet) -> None:
    body = completion(new_prompt())
    status, stream = post(vllm_pd.prefill, COMPLETIONS, prefill_leg(body) | {"stream": True})
    assert status == 200 and b"[DONE]" in stream and b"remote_block_ids" not in stream
    several = answered(vllm_pd.prefill, COMPLETIONS, prefill_leg(body | {"prompt": [new_prompt(), [7] * 50]}))
    assert len(several["choices"]) == 2
    assert several["kv_transfer_params"]["remote_num_tokens"] == 200


# the decode leg -----------------------------------------------------------------------------------

LOGPROB_TOLERANCE = 0.05
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, completion(new_prompt(), 24)),
        (COMPLETIONS, completion(new_prompt(2 * BLOCK), logprobs=2)),
        (CHAT, new_chat(24)),
        (CHAT, new_chat(logprobs=True, top_logprobs=2)),
        (CHAT, new_chat(response_format=FORMAT)),
    ],
)
def test_disaggregated_answer_equals_that_of_one_worker(vllm_pd: PdFleet, path: str, body: Body) -> None:
    plain = {k: v for k, v in body.items() if k not in ("logprobs", "top_logprobs", "response_format")}
    decoded = answered(vllm_pd.failing, path, body | vllm_pd.parameters(plain, path))
    alone = answered(vllm_pd.recomputing, path, body)  # has not cached this prompt
    assert decoded["choices"] == rounded(alone["choices"])
    assert decoded["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert decoded["kv_transfer_params"] is None


def rounded(value: Any) -> Any:
    """An answer with approximate logprobs: in bf16 they depend on how many tokens a step computes."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return pytest.approx(value, abs=LOGPROB_TOLERANCE) if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("path", "make"), [(COMPLETIONS, lambda: completion(new_prompt())), (CHAT, new_chat)]
)
def test_disaggregated_stream_equals_the_answer_of_one_worker(
    vllm_pd: PdFleet, path: str, make: Callable[[], Body]
) -> None:
    body = make()
    alone = answered(vllm_pd.recomputing, path, body)
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    status, stream = post(vllm_pd.failing, path, asked | vllm_pd.parameters(body, path))
    assert status == 200
    *chunks, last = chunks_of(stream)
    assert "".join(map(text_of, chunks)) == text_of(alone)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def chunks_of(stream: bytes) -> list[Any]:
    *events, done = (line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line)
    assert done == b"[DONE]"
    return [json.loads(event) for event in events]


def text_of(answer: Any) -> str:
    (choice,) = answer["choices"]
    message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return str(message.get("content") or "")


def test_cached_tokens_are_those_of_the_prefill_leg_where_its_field_is_passed_on(vllm_pd: PdFleet) -> None:
    num_cached = []
    for keeps in (True, False):
        body = completion(new_prompt())
        answered(vllm_pd.prefill, COMPLETIONS, body)
        params = vllm_pd.parameters(body)["kv_transfer_params"]
        if not keeps:
            del params["remote_prefill_cached_tokens"]
        num_cached.append(
            cached(answered(vllm_pd.failing, COMPLETIONS, body | {"kv_transfer_params": params}))
        )
    assert num_cached == [192, 200]  # without the field all pulled tokens count as cached


def test_pulled_blocks_are_published_as_events_and_reused_by_the_next_turn(vllm_pd: PdFleet) -> None:
    for decode in vllm_pd.decodes:
        prompt = new_prompt()
        before = len(list(replayed(decode)))
        body = completion(prompt, 40, return_token_ids=True)
        answer = answered(decode, COMPLETIONS, body | vllm_pd.parameters(body))
        output = answer["choices"][0]["token_ids"]
        runs = [event for event in list(replayed(decode))[before:] if isinstance(event, BlocksStored)]
        assert [token for run in runs for token in run.tokens] == (prompt + output)[:224]
        assert runs[0].parent is None and len(runs[0].engine_hashes) == 6
        second = completion([*prompt, *output, *new_prompt(50)])
        assert cached(answered(decode, COMPLETIONS, second)) == 224


def replayed(worker: VllmWorker) -> Iterator[KvEvent]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(worker.replay_endpoint)
        dealer.send_multipart(VLLM.replay_request(0))
        while dealer.poll(int(TIMEOUT_S * 1000)):
            batch = VLLM.decode_replay(dealer.recv_multipart())
            if batch is None:
                return
            yield from batch.events
    raise AssertionError(f"{worker!r} does not replay")


# pinned blocks -----------------------------------------------------------------------------


def test_rejected_decode_leg_unpins_the_blocks(vllm_pd: PdFleet) -> None:
    """Without requests the gauge counts pinned blocks only, whatever is cached."""
    before = pinned(vllm_pd.prefill)
    params = vllm_pd.parameters(completion(new_prompt(64 * BLOCK)))
    assert pinned(vllm_pd.prefill) > before + 0.05
    refused = completion(new_prompt(8), min_tokens=99) | params
    assert post(vllm_pd.failing, COMPLETIONS, refused)[0] == 400
    wait_until(lambda: pinned(vllm_pd.prefill) <= before, TIMEOUT_S)


def test_disconnect_during_prefill_leaves_no_block_pinned(vllm_pd: PdFleet) -> None:
    before = pinned(vllm_pd.prefill)
    body = json.dumps(prefill_leg(completion(new_prompt(8000)))).encode()
    with socket.create_connection(("127.0.0.1", vllm_pd.prefill.port)) as client:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: metric(vllm_pd.prefill, RUNNING) == 1, TIMEOUT_S)
    wait_until(lambda: metric(vllm_pd.prefill, RUNNING) == 0, TIMEOUT_S)
    assert pinned(vllm_pd.prefill) <= before


def test_transfer_parameters_may_be_used_twice_while_the_blocks_are_cached(vllm_pd: PdFleet) -> None:
    """The prefill worker unpins the blocks with the first pull, but allows a second one while they last."""
    late = metric(vllm_pd.prefill, LATE)
    body = completion(new_prompt())
    body |= vllm_pd.parameters(body)
    first, second = (answered(decode, COMPLETIONS, body) for decode in vllm_pd.decodes)
    assert first["choices"] == second["choices"]

    def is_noticed() -> bool:
        pinned(vllm_pd.prefill)
        return metric(vllm_pd.prefill, LATE) > late

    wait_until(is_noticed, TIMEOUT_S)


def test_blocks_that_are_never_pulled_are_unpinned_with_their_lease(
    vllm_pd: PdFleet, num_expired: float
) -> None:
    def is_expired() -> bool:
        pinned(vllm_pd.prefill)
        return metric(vllm_pd.prefill, EXPIRED) > num_expired

    wait_until(is_expired, TIMEOUT_S)


# failure: the last test, since it kills engines -----------------------------------------------------


def test_pull_fails_after_a_killed_prefill_worker_and_incomplete_parameters_kill_a_decode_worker(
    vllm_pd: PdFleet,
) -> None:
    asks = {"stream": True}, {}
    bodies = [new_chat(**ask) for ask in asks]
    split = [body | vllm_pd.parameters(body, CHAT) for body in bodies]
    rescued = new_chat()
    rescue = rescued | vllm_pd.parameters(rescued, CHAT)
    failed = metric(vllm_pd.failing, FAILED)
    vllm_pd.prefill.kill()

    status, stream = post(vllm_pd.failing, CHAT, split[0])
    assert status == 200  # the head and the role are sent before the pull
    role, error = chunks_of(stream)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert error == {"error": INTERNAL}
    status, answer = post(vllm_pd.failing, CHAT, split[1])
    assert (status, json.loads(answer)) == (500, {"error": INTERNAL})
    wait_until(lambda: metric(vllm_pd.failing, FAILED) >= failed + 2, TIMEOUT_S)

    saved = answered(vllm_pd.recomputing, CHAT, rescue)
    assert saved["choices"] == answered(vllm_pd.failing, CHAT, rescued)["choices"]

    status, answer = post(
        vllm_pd.failing, COMPLETIONS, completion([7] * 40, kv_transfer_params={"do_remote_prefill": True})
    )
    assert (status, json.loads(answer)["error"]["code"]) == (500, 500)
    wait_until(lambda: not vllm_pd.failing.is_ready(), TIMEOUT_S)

    for worker in (vllm_pd.prefill, vllm_pd.failing):
        worker.restart()
    for worker in (vllm_pd.prefill, vllm_pd.failing):
        worker.wait_ready()
    vllm_pd.meet()
