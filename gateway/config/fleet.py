"""The options of who the workers are and how they work together; all are fields of `Config`."""

from typing import Annotated

import msgspec

from gateway.config.options import option
from gateway.core.block_limits import MAX_BLOCKS


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    worker: Annotated[
        list[str],
        option(
            "Base URL of a worker; give one per worker, more can join at run time through the admin API. "
            "All else is asked of the worker itself.",
            "URL",
        ),
    ] = msgspec.field(default_factory=list)
    prefill: Annotated[
        list[str],
        option(
            "Base URL of a worker that computes prompts for others (vLLM's kv_producer). One that says of "
            "itself that it is none is refused.",
            "URL",
        ),
    ] = msgspec.field(default_factory=list)
    decode: Annotated[
        list[str],
        option(
            "Base URL of a worker that answers from prompts that others computed (vLLM's kv_consumer), or "
            "computes them itself where that is sooner.",
            "URL",
        ),
    ] = msgspec.field(default_factory=list)
    engine: Annotated[
        list[str],
        option(
            "What the workers run: vllm, sglang, trtllm or openai (whatever else speaks OpenAI), or URL=NAME "
            "for one of them. Without it each worker is asked, and one fleet may have several.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    tokenizer: Annotated[
        list[str],
        option(
            "Directory with tokenizer.json and chat template, for all models, or MODEL=DIR for one. "
            "Without it one is looked for by the root that workers tell: a directory here, the Hugging Face "
            "cache, the hub. Where there is none, a worker tokenizes each new prompt: a round trip.",
            "path",
        ),
    ] = msgspec.field(default_factory=list)
    disaggregation: Annotated[
        list[str],
        option(
            "Whether prompts are computed on prefill workers: auto (where the first token is predicted to "
            "come sooner, counting what it does to answers under way), always or never; or MODEL=MODE for "
            "one model. Without it: auto.",
            "mode",
        ),
    ] = msgspec.field(default_factory=list)
    connector: Annotated[
        list[str],
        option(
            "How a prompt's cache goes from prefill to decode workers: nixl, mooncake, shared_storage "
            "(vLLM), bootstrap (SGLang) or context (TensorRT-LLM), or URL=NAME for one worker. Without it "
            "the engine's own: nixl for vLLM.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    topology: Annotated[
        list[str],
        option(
            "URL=LABEL: where a worker stands, the widest first, as in http://10.0.0.1:8000=rack2/host7. "
            "Each part that two do not share makes a transfer between them count once more.",
            "label",
        ),
    ] = msgspec.field(default_factory=list)
    prefill_timeout_s: Annotated[
        float,
        option(
            "For a prefill worker's answer; then another one is asked, and then the decode worker computes "
            "the prompt. Long prompts and queues take their time.",
            "seconds",
            gt=0,
        ),
    ] = 60.0
    prefill_tokens_per_s: Annotated[
        float,
        option(
            "How fast a worker computes a prompt, before it is known from its answers: about an 8B model's "
            "on an H100.",
            "tokens/s",
            gt=0,
        ),
    ] = 20_000.0
    transfer_tokens_per_s: Annotated[
        float,
        option(
            "How fast a prompt's cache goes to another worker, before it is known: 128 KiB a token (an 8B "
            "model's) at 100 Gbit/s.",
            "tokens/s",
            gt=0,
        ),
    ] = 90_000.0
    transfer_latency_s: Annotated[
        float,
        option(
            "What a transfer takes however short the prompt: two requests and a handshake.", "seconds", ge=0
        ),
    ] = 0.015
    max_worker_blocks: Annotated[
        int,
        option(
            "Cached blocks that are kept of one worker at most, on its GPU and offloaded each, whatever it "
            "declares. Events beyond that are not read for a while, and its stream is BLIND.",
            "blocks",
            ge=1024,
        ),
    ] = MAX_BLOCKS
    offload_blocks: Annotated[
        int,
        option(
            "Cached blocks that are kept of one worker in all its offload tiers (CPU, disk, remote) at most, "
            "since no engine declares these; 0: 16 times what it declares for its GPU.",
            "blocks",
            ge=0,
        ),
    ] = 0
    allow_transfer_fields: Annotated[
        bool,
        option(
            "Pass clients' kv_transfer_params, ec_transfer_params, bootstrap_*, disaggregated_params and "
            "the like on, from clients that split requests themselves. They steer engines to other "
            "hosts, and can end them."
        ),
    ] = False
