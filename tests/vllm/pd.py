"""Prefill and decode on separate engines, joined by NIXL over loopback.

All engines start side by side, in the time of one. The decode workers differ in their reaction to a failed
transfer: the first fails the request (vLLM's default), the second computes the blocks itself.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.error import HTTPError

from loadtest.ports import free_port
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker
from tests.vllm.inside import new_ids
from tests.vllm.sdk import client

NUM_BLOCKS = 600  # of 32 tokens
TIMEOUT_S = 120.0  # on a busy machine a pull of 0.1 s may stall for half a minute
NUM_TRIES = 10
SIDE_CHANNEL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"

ENVIRONMENT = {
    "UCX_TLS": "tcp,self,sm,cma,posix,sysv",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}

Body = dict[str, Any]

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class PdFleet:
    """A prefill worker and two decode workers of one model."""

    prefill: VllmWorker
    failing: VllmWorker
    recomputing: VllmWorker
    first_metrics: list[str] = field(default_factory=list)
    """Metrics page of each worker before its first request."""

    @property
    def workers(self) -> tuple[VllmWorker, VllmWorker, VllmWorker]:
        return self.prefill, self.failing, self.recomputing

    @property
    def decodes(self) -> tuple[VllmWorker, VllmWorker]:
        return self.failing, self.recomputing

    def meet(self) -> "PdFleet":
        """Pull once in each pair, for the handshake, which may be slow or fail on a busy machine."""
        for decode in self.decodes:
            for _ in range(NUM_TRIES):
                body = completion([next(_numbers)] * 40)
                if post(decode, "/v1/completions", body | self.parameters(body))[0] == 200:
                    break
            else:
                raise AssertionError(f"{decode!r} cannot pull from {self.prefill!r}:\n{decode.log_tail()}")
        return self

    def parameters(self, body: Body, path: str = "/v1/completions") -> Body:
        """Send the prefill leg of a body, and return the field for its decode leg."""
        status, answer = post(self.prefill, path, prefill_leg(body))
        assert status == 200, answer
        return {"kv_transfer_params": json.loads(answer)["kv_transfer_params"]}


def start_pd(start: Callable[..., VllmWorker]) -> PdFleet:
    """A fleet started by the function of `start_vllm`; the recomputing worker has no developer endpoints."""
    fleet = PdFleet(
        start(**_options("kv_producer")),
        start(**_options("kv_consumer")),
        start(**_options("kv_consumer", [("VLLM_SERVER_DEV_MODE", "0")], kv_load_failure_policy="recompute")),
    )
    for worker in fleet.workers:
        worker.wait_ready()
    fleet.first_metrics.extend(worker.get("/metrics", TIMEOUT_S).decode() for worker in fleet.workers)
    return fleet.meet()


def side_channel(worker: VllmWorker) -> str:
    return f"tcp://127.0.0.1:{dict(worker.options.extra_env)[SIDE_CHANNEL_PORT]}"


def completion(prompt: Sequence[int], max_tokens: int = 8, **fields: Any) -> Body:
    body: Body = {"model": "m", "prompt": list(prompt), "max_tokens": max_tokens}
    return body | {"temperature": 0, "ignore_eos": True} | fields


def prefill_leg(body: Body) -> Body:
    """Body of the prefill leg: the worker pins the blocks and answers with transfer parameters."""
    ask: Body = {"do_remote_decode": True, "do_remote_prefill": False}
    ask |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    kept = {name: value for name, value in body.items() if name != "stream_options"}
    return kept | {"max_tokens": 1, "stream": False, "kv_transfer_params": ask}


def post(worker: VllmWorker, path: str, body: Body) -> tuple[int, bytes]:
    """Status and body of an answer, also of an error."""
    try:
        return 200, worker.post(path, body, TIMEOUT_S)
    except HTTPError as error:
        with error:
            return error.code, error.read()


def _options(role: str, extra_env: Sequence[tuple[str, str]] = (), **config: object) -> dict[str, Any]:
    """Options of a worker with a side channel on a port of its own, which a restart keeps."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"} | config
    port = free_port()
    return {
        "num_gpu_blocks_override": NUM_BLOCKS,
        "extra_args": ("--kv-transfer-config", json.dumps(transfer)),
        "extra_env": [*ENVIRONMENT.items(), (SIDE_CHANNEL_PORT, str(port)), *extra_env],
    }


TIE = 0.1
"""Difference in log probability up to which two tokens tie: some times the rounding error of bf16."""


class PdAnswer:
    """Text and number of prompt tokens of an answer; parts of a stream are joined."""

    def __init__(self, url: str, number: int, *, max_tokens: int = 8) -> None:
        """Send prompt `number`, which also selects chat or completion, streamed or not."""
        self.is_chat, is_stream = number % 2 == 0, number % 4 < 2
        more: dict[str, Any] = (
            {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        )
        common = {"model": "m", "max_tokens": max_tokens, "temperature": 0, **more}
        words = words_of(number)
        api = client(url)
        if self.is_chat:
            answer: Any = api.chat.completions.create(messages=[{"role": "user", "content": words}], **common)
        else:
            answer = api.completions.create(prompt=words, **common)
        self.text, self.num_prompt_tokens = self._whole(list(answer) if is_stream else [answer])

    def _whole(self, parts: list[Any]) -> tuple[str, int]:
        choices = [choice for part in parts for choice in part.choices]
        if self.is_chat:
            texts = [(getattr(choice, "delta", None) or choice.message).content for choice in choices]
        else:
            texts = [choice.text for choice in choices]
        return "".join(text or "" for text in texts), parts[-1].usage.prompt_tokens


def is_near_tie(url: str, number: int, text: str) -> bool:
    """Return whether an answer is the engine's own, or first differs at two about equally likely tokens.

    Which of the two wins depends on the other requests of the same step and on what is cached, in bf16, on
    one worker too: asked again, with the prompt cached, it may choose the other.
    """
    tokens = tokens_with_logprobs(url, number)
    before = ""
    for best, others in tokens:
        is_same = bool(best) and text.startswith(before + best)  # part of a character is an empty text
        likely = [other for other, logprob in others.items() if max(others.values()) - logprob <= TIE]
        if not is_same and any(other and text.startswith(before + other) for other in likely):
            return True
        if best and not is_same:
            return False
        before += best
    return True


def tokens_with_logprobs(url: str, number: int) -> list[tuple[str, dict[str, float]]]:
    """Tokens of the engine's own answer, each with the likeliest tokens at its position."""
    words = words_of(number)
    if number % 2 == 0:
        chat = client(url).chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": words}],
            max_tokens=8,
            temperature=0,
            logprobs=True,
            top_logprobs=5,
        )
        assert chat.choices[0].logprobs and chat.choices[0].logprobs.content
        return [
            (token.token, {other.token: other.logprob for other in token.top_logprobs})
            for token in chat.choices[0].logprobs.content
        ]
    completion = client(url).completions.create(
        model="m", prompt=words, max_tokens=8, temperature=0, logprobs=5
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs and logprobs.tokens and logprobs.top_logprobs
    return list(zip(logprobs.tokens, logprobs.top_logprobs, strict=True))


def words_of(number: int) -> str:
    return " ".join(f"number {i}" for i in new_ids(f"gateway {number}", 60))


def plans(gateway: GatewayProcess) -> dict[str, int]:
    """Requests by plan."""
    found: dict[str, int] = {}
    for line in gateway.metrics().splitlines():
        if line.startswith("kvgate_disaggregation_plans_total{"):
            plan = line.partition('plan="')[2].partition('"')[0]
            found[plan] = found.get(plan, 0) + int(float(line.rpartition(" ")[2]))
    return found
