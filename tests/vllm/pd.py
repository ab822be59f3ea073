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
from tests.vllm.engine import VllmWorker

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
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
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
