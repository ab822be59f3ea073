"""vLLM's own `KVCacheManager` over random traces, without a model; runs with vLLM's Python.

    inside_kv_manager.py SEED drop|keep     `drop`: as with EAGLE or MTP

Each request is a line of JSON on standard output: its prompt, the cached tokens that the manager found, and
the KV events that followed, as vLLM's encoder writes them.
"""

import base64
import json
import random
import sys

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK, NUM_BLOCKS, NUM_REQUESTS = 16, 60, 400


def manager_of(*, use_eagle: bool) -> KVCacheManager:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config,
        max_model_len=8192,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_caching=True,
        use_eagle=use_eagle,
        enable_kv_cache_events=True,
    )


def prompt_of(rng: random.Random, known: list[list[int]]) -> list[int]:
    """A new prompt, or one that goes on from, repeats, or leaves a known one."""
    if not known or rng.random() < 0.2:
        return [rng.randrange(1000) for _ in range(rng.randrange(1, 200))]
    before = rng.choice(known[-12:])
    kept = before[: rng.randrange(1, len(before) + 1)] if rng.random() < 0.6 else before
    return [
        *kept,
        *(rng.randrange(1000) for _ in range(rng.choice((0, 0, 1, 15, 16, 17, rng.randrange(60))))),
    ]


def main() -> None:
    seed, mode = sys.argv[1:]
    rng = random.Random(int(seed))
    init_none_hash(sha256_cbor)
    manager, encode = manager_of(use_eagle=mode == "drop"), msgspec.msgpack.Encoder().encode
    hasher, known = get_request_block_hasher(BLOCK, sha256_cbor), []
    for number in range(NUM_REQUESTS):
        prompt = prompt_of(rng, known)[: 30 * BLOCK]
        request = Request(str(number), list(prompt), SamplingParams(max_tokens=64), None, block_hasher=hasher)
        blocks, num_cached, _ = manager.get_computed_blocks(request)
        made = manager.allocate_slots(request, len(prompt) - num_cached, num_cached, blocks)
        assert made is not None, "one request fits"
        request.num_computed_tokens = len(prompt)
        for _ in range(rng.randrange(40)):
            request.append_output_token_ids(rng.randrange(1000))
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        manager.free(request)
        known.append(list(request.all_token_ids))
        events = manager.take_events()
        payload = encode(KVEventBatch(ts=float(number + 1), events=events)) if events else b""
        line = {"prompt": prompt, "cached": num_cached, "payload": base64.b64encode(payload).decode()}
        print(json.dumps(line))


main()
