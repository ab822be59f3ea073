"""The simulated engine against a real vLLM: equal requests give equal events and equal hits.

Both answer the same scripts, request by request. Their batches must be equal event by event: hashes modulo a
bijection (equal where nothing was generated, since the simulated engine computes vLLM's sha256_cbor), tokens
where they came from prompts. The reported cached_tokens must be equal for every request.
"""

import asyncio
import json
import random
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import zmq

from engines.sim import Sim, SimConfig
from tests.support.engine_process import wait_until
from tests.support.patience import patience
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.vllm

BLOCK = 32  # the smallest that vLLM takes on CPU
NUM_BLOCKS = 40
CONTEXT = 1024
BATCHED = 384  # long prompts are prefilled in chunks
END = (-1).to_bytes(8, "big", signed=True)
SENTINEL = list(range(7000, 7000 + BLOCK))


@dataclass
class Endpoint:
    """Real or simulated engine, with the cached tokens that it reported."""

    url: str
    replay: str
    cached: list[int] = field(default_factory=list)

    def post(self, path: str, body: dict[str, Any] | None) -> bytes:
        data = json.dumps({"model": "m"} | body).encode() if body is not None else b""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=patience(60)) as answer:
            return bytes(answer.read())

    def complete(self, prompt: Sequence[int], max_tokens: int = 1, **fields: Any) -> list[int]:
        """Record the cached tokens of a completion, and return the generated token ids."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.post("/v1/completions", body | {"return_token_ids": True} | fields))
        self.cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        return list(answer["choices"][0]["token_ids"])

    def chat(self, messages: list[dict[str, str]], stream: bool) -> None:
        body = {"messages": messages, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        if not stream:
            usage = json.loads(self.post("/v1/chat/completions", body))["usage"]
        else:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            chunks = self.post("/v1/chat/completions", body).split(b"\n\n")
            assert chunks[-2:] == [b"data: [DONE]", b""]
            usage = json.loads(chunks[-3].removeprefix(b"data: "))["usage"]
        self.cached.append(usage["prompt_tokens_details"]["cached_tokens"])

    def batches(self) -> list[list[dict[str, Any]]]:
        """All events so far, by batch; they are complete when those of a sentinel prompt have come."""
        self.complete(SENTINEL)
        found: list[list[dict[str, Any]]] = []

        def is_complete() -> bool:
            found[:] = replayed(self.replay)
            return any(event.get("token_ids") == SENTINEL for event in found[-1])

        wait_until(is_complete, 10.0)
        return found


def replayed(endpoint: str) -> list[list[dict[str, Any]]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = 10_000
        dealer.connect(endpoint)
        dealer.send_multipart((b"", bytes(8)))
        payloads: list[bytes] = []
        while (frames := dealer.recv_multipart())[2] != END:
            assert int.from_bytes(frames[2], "big") == len(payloads)
            payloads.append(frames[3])
    batches = [msgspec.msgpack.decode(payload) for payload in payloads]
    assert all(batch[2] == 0 for batch in batches)
    return [batch[1] for batch in batches]


# scripts: all prompts come from a seed, so both engines get the same ----------


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 7000) for _ in range(length)]


def lengths(at: Endpoint, rng: random.Random) -> None:
    """Prompts around block borders; aligned prompts store their last block again."""
    for length in (1, 31, 32, 33, 63, 64, 65, 100, 128):
        tokens = prompt(rng, length)
        for _ in range(3):
            at.complete(tokens)


def shared_prefixes(at: Endpoint, rng: random.Random) -> None:
    system = prompt(rng, 80)
    for length in (5, 16, 17, 48, 60):
        at.complete(system + prompt(rng, length))
    for salt in ("tenant-a", "tenant-b", "tenant-a"):
        at.complete(system + prompt(rng, 20), cache_salt=salt)


def conversation(at: Endpoint, rng: random.Random) -> None:
    """Turns of the turn before, the engine's answer and new tokens."""
    tokens = prompt(rng, 90)
    for length in (30, 7, 64, 33, 50):
        tokens = tokens + at.complete(tokens, max_tokens=length) + prompt(rng, length)


def eviction(at: Endpoint, rng: random.Random) -> None:
    """Documents of four times the cache in total: long prefills in chunks, hits of all depths."""
    documents = [prompt(rng, rng.randrange(200, 900)) for _ in range(8)]
    for _ in range(60):
        document = rng.choice(documents)
        at.complete(document[: rng.randrange(20, len(document))] + prompt(rng, rng.randrange(3)))


def chats(at: Endpoint, rng: random.Random) -> None:
    messages = [{"role": "system", "content": "You answer briefly, and only when you are sure. " * 6}]
    for turn in range(4):
        messages.append({"role": "user", "content": f"What is {rng.randrange(1000)} times {turn}? " * 5})
        at.chat(messages, stream=turn % 2 == 0)
        messages.append({"role": "assistant", "content": "I would have to think about that."})


def reset(at: Endpoint, rng: random.Random) -> None:
    tokens = prompt(rng, 100)
    at.complete(tokens)
    assert json.loads(at.post("/reset_prefix_cache", None)) == {"success": True}
    at.complete(tokens)


def reports(at: Endpoint, rng: random.Random) -> None:
    """Hits announced on request, also where the engine evicts for the rest of the prompt."""
    tokens = prompt(rng, 200)
    at.complete(tokens)
    for length in (1, 40, 700):
        at.complete(tokens + prompt(rng, length), vllm_xargs={"kv_cache_report_mode": "full"})


SCRIPTS = (lengths, shared_prefixes, conversation, eviction, chats, reports, reset)


# comparison ---------------------------------------------------------------------------------------


@dataclass
class Bijection:
    """Pairs of a real and a simulated hash at the same position of both streams."""

    there: dict[Any, Any] = field(default_factory=dict)
    back: dict[Any, Any] = field(default_factory=dict)

    def accepts(self, real: Any, simulated: Any) -> bool:
        return bool(
            self.there.setdefault(real, simulated) == simulated
            and self.back.setdefault(simulated, real) == real
        )


HASHES = ("block_hashes", "parent_block_hash")


def assert_equal_streams(real: list[list[Any]], simulated: list[list[Any]]) -> None:
    bijection = Bijection()
    for number, (batch, other) in enumerate(zip(real, simulated, strict=True)):
        assert len(batch) == len(other), f"batch {number}: {batch} != {other}"
        for expected, event in zip(batch, other, strict=True):
            assert list(expected) == list(event), f"batch {number}: fields"
            assert _rest(expected) == _rest(event), f"batch {number}"
            for pair in _hash_pairs(expected, event):
                assert bijection.accepts(*pair), f"batch {number}: {expected} != {event}"


def _rest(event: dict[str, Any]) -> dict[str, Any]:
    """Fields without hashes, and the number of tokens (generated ones differ, hashes identify the others)."""
    rest = {key: value for key, value in event.items() if key not in HASHES}
    return rest | {"token_ids": len(event.get("token_ids", ()))}


def _hash_pairs(real: dict[str, Any], simulated: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    if "block_hashes" in real:
        yield from zip(real["block_hashes"], simulated["block_hashes"], strict=True)
    if "parent_block_hash" in real:
        yield real["parent_block_hash"], simulated["parent_block_hash"]


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    config = SimConfig(
        kv_blocks=NUM_BLOCKS, block_size=BLOCK, max_model_len=CONTEXT, max_batched_tokens=BATCHED,
        decode_tokens_per_s=10_000.0, prefill_tokens_per_s=1e6,
    )  # fmt: skip
    worker = await Sim(config).start()
    yield worker
    await worker.stop()


async def test_simulated_engine_has_the_events_and_hits_of_the_real_one(
    start_vllm: Callable[..., VllmWorker], sim: Sim
) -> None:
    worker = start_vllm(
        num_gpu_blocks_override=NUM_BLOCKS,
        block_size=BLOCK,
        max_model_len=CONTEXT,
        extra_args=("--max-num-batched-tokens", str(BATCHED), "--max-num-seqs", "16"),
    )
    await asyncio.to_thread(worker.wait_ready)
    real = Endpoint(worker.url, worker.replay_endpoint)
    simulated = Endpoint(sim.url, sim.replay_endpoint)

    for script in SCRIPTS:
        for at in (real, simulated):
            await asyncio.to_thread(script, at, random.Random(script.__name__))
        assert simulated.cached == real.cached, script.__name__
    batches = [await asyncio.to_thread(at.batches) for at in (real, simulated)]
    assert_equal_streams(*batches)
    assert len(batches[0]) > 50
    same = set(_stored(batches[0])) & set(_stored(batches[1]))
    assert len(same) > 100, "blocks of prompts have vLLM's own hashes"


def _stored(batches: list[list[dict[str, Any]]]) -> Iterator[Any]:
    for batch in batches:
        for event in batch:
            if event["type"] == "BlockStored":
                yield from event["block_hashes"]
