"""vLLM's own `KVCacheManager` over random traces, without a model; runs with vLLM's Python.

    inside_kv_manager.py SEED drop|keep plain|window|mamba [NUM_REQUESTS]

`drop`: as with EAGLE or MTP; `window`, `mamba`: hybrid models. Each request is a line of JSON on standard
output: its prompt, the cached tokens that the manager found, and the KV events that followed, as vLLM's
encoder writes them. `tests/data/vllm_hits/SOURCE` says how other versions run.
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
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

BLOCK, NUM_REQUESTS = 16, 400
MAMBA_BLOCK = 4 * BLOCK
WINDOW = 3 * BLOCK
NUM_BLOCKS = {"plain": 60, "window": 200, "mamba": 200}
"""So few that they are evicted; groups of layers share them."""


def groups_of(kind: str) -> list[KVCacheGroupSpec]:
    """The layers of a model of this kind: full attention, with windows or state-space layers beside it."""
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], full)]
    if kind == "window":
        window = SlidingWindowSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW
        )
        groups += [KVCacheGroupSpec([f"window {i}"], window) for i in range(2)]
    if kind == "mamba":
        state = MambaSpec(
            block_size=MAMBA_BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        groups.append(KVCacheGroupSpec(["state"], state))
    return groups


def manager_of(kind: str, *, use_eagle: bool) -> KVCacheManager:
    groups = groups_of(kind)
    config = KVCacheConfig(num_blocks=NUM_BLOCKS[kind], kv_cache_tensors=[], kv_cache_groups=groups)
    return KVCacheManager(
        config,
        max_model_len=8192,
        scheduler_block_size=max(group.kv_cache_spec.block_size for group in groups),
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


def steps_of(start: int, end: int, kind: str) -> list[int]:
    """Ends of the steps in which a prompt is computed. vLLM's scheduler ends a step where a state of the
    state-space layers can be kept, at the last block boundary of the prompt."""
    boundary = (end - 1) // MAMBA_BLOCK * MAMBA_BLOCK
    return [boundary, end] if kind == "mamba" and start < boundary else [end]


def main() -> None:
    seed, mode, kind, *num = sys.argv[1:]
    rng = random.Random(int(seed))
    init_none_hash(sha256_cbor)
    manager, encode = manager_of(kind, use_eagle=mode == "drop"), msgspec.msgpack.Encoder().encode
    hasher, known = get_request_block_hasher(BLOCK, sha256_cbor), []
    for number in range(int(num[0]) if num else NUM_REQUESTS):
        prompt = prompt_of(rng, known)[: 30 * BLOCK]
        request = Request(str(number), list(prompt), SamplingParams(max_tokens=64), None, block_hasher=hasher)
        blocks, num_cached, _ = manager.get_computed_blocks(request)
        for end in steps_of(num_cached, len(prompt), kind):
            found = (num_cached, blocks) if request.num_computed_tokens == 0 else ()
            num = end - max(request.num_computed_tokens, num_cached)
            assert manager.allocate_slots(request, num, *found) is not None, "one request fits"
            request.num_computed_tokens = end
            manager.new_step_starts()
        for _ in range(rng.randrange(40)):
            request.append_output_token_ids(rng.randrange(1000))
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
            manager.new_step_starts()
        manager.free(request)
        known.append(list(request.all_token_ids))
        events = manager.take_events()
        payload = encode(KVEventBatch(ts=float(number + 1), events=events)) if events else b""
        line = {"prompt": prompt, "cached": num_cached, "payload": base64.b64encode(payload).decode()}
        print(json.dumps(line))


main()
