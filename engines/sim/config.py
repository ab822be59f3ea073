"""Properties of a simulated worker, and the command line made from them."""

import argparse
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

from gateway.core.durations import seconds_of
from gateway.core.kv_events import SHARED

BUNDLED_TOKENIZER = Path(__file__).parent / "tokenizer"


class SimConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a simulated worker. Each field is a flag of the same name; the description is its
    help."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="HTTP port, 0 for a free one")] = 0
    model: Annotated[str, Meta(description="name under which the model is served")] = "m"
    alias: Annotated[tuple[str, ...], Meta(description="further names of the same model")] = ()
    lora: Annotated[tuple[str, ...], Meta(description="names of LoRA adapters, each served as a model")] = ()
    runtime_lora: Annotated[
        bool,
        Meta(description="load and unload adapters on request, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
    ] = False
    tokenizer: Annotated[
        Path, Meta(description="directory with tokenizer.json and tokenizer_config.json")
    ] = BUNDLED_TOKENIZER
    kv_blocks: Annotated[
        int, Meta(description="cache size in blocks, as --num-gpu-blocks-override; one of them is reserved")
    ] = 8192
    block_size: Annotated[int, Meta(description="tokens per block")] = 16
    prefill_tokens_per_s: Annotated[
        float, Meta(description="prefill speed: every prompt token computed adds 1/this to its step")
    ] = 20_000.0
    decode_tokens_per_s: Annotated[
        float, Meta(description="decode speed of one sequence alone: a step costs at least 1/this")
    ] = 50.0
    decode_batch_cost: Annotated[
        float, Meta(description="share of such a step that each sequence decoding in it adds, 0 to 1")
    ] = 0.02
    max_batched_tokens: Annotated[int, Meta(description="tokens per step (chunked prefill)")] = 8192
    max_num_seqs: Annotated[int, Meta(description="sequences running at once")] = 128
    max_num_queued_reqs: Annotated[
        int, Meta(description="requests at once; more are rejected with 503, as by vLLM; 0: no limit")
    ] = 0
    max_model_len: Annotated[
        int,
        Meta(description="prompt and output tokens of a request, 0: the cache size, at most 32768"),
    ] = 0
    mean_output_tokens: Annotated[
        int, Meta(description="mean length of a response that ends by itself, in tokens")
    ] = 64
    seed: Annotated[int, Meta(description="decides output, and the dice of faults")] = 0
    dp_size: Annotated[int, Meta(description="data-parallel ranks, each with a cache and event stream")] = 1
    event_wire: Annotated[
        Literal["map", "array"], Meta(description="events as vLLM 0.24 and newer, or 0.23, writes them")
    ] = "map"
    hash: Annotated[
        Literal["int", "bytes"], Meta(description="engine hashes as 64-bit integers or 32 raw bytes")
    ] = "int"
    cpu_blocks: Annotated[int, Meta(description="blocks of an offload tier in host memory, 0: none")] = 0
    storage_blocks: Annotated[int, Meta(description="blocks of an offload tier in storage, 0: none")] = 0
    storage_locality: Annotated[
        Literal["", "LOCAL", "REMOTE"],
        Meta(description="locality that its operator declares for that storage"),
    ] = ""
    window_tokens: Annotated[
        int, Meta(description="sliding window of a second group of layers, 0: all are full attention")
    ] = 0
    window_blocks: Annotated[int, Meta(description="cache size of that group, in blocks")] = 1024
    partial_blocks: Annotated[
        bool, Meta(description="publish beginnings of blocks too, as newer versions may")
    ] = False
    events: Annotated[bool, Meta(description="publish KV events")] = True
    events_port: Annotated[int, Meta(description="PUB port of rank 0 (rank r: + r), 0 for free ones")] = 0
    replay: Annotated[bool, Meta(description="answer replay requests")] = True
    replay_port: Annotated[int, Meta(description="replay port of rank 0 (rank r: + r), 0 for free ones")] = 0
    replay_buffer: Annotated[int, Meta(description="event batches kept for replay")] = 10_000
    topic: Annotated[str, Meta(description="topic of the event stream")] = ""
    prompt_tokens_details: Annotated[bool, Meta(description="report cached_tokens in usage")] = True
    pd_role: Annotated[
        Literal["", "prefill", "decode", "both"],
        Meta(description="role in disaggregated prefill and decode"),
    ] = ""
    pd_protocol: Annotated[
        Literal["nixl", "mooncake", "shared_storage", "sglang", "trtllm"],
        Meta(description="protocol of such workers, with --pd-role"),
    ] = "nixl"
    pd_port: Annotated[
        int, Meta(description="port at which other workers fetch blocks (side channel), 0 for a free one")
    ] = 0
    bootstrap_port: Annotated[
        int, Meta(description="Mooncake's HTTP port that reports the engine id, 0 for a free one")
    ] = 0
    pd_store: Annotated[
        Path | None, Meta(description="directory that workers with shared storage have in common")
    ] = None
    pd_info: Annotated[
        bool,
        Meta(description="report role and connector at /server_info, as vLLM with VLLM_SERVER_DEV_MODE=1"),
    ] = True
    transfer_tokens_per_s: Annotated[
        float, Meta(description="speed of a transfer between workers, in prompt tokens")
    ] = 100_000.0
    transfer_latency_s: Annotated[float, Meta(description="minimum time of a transfer")] = 0.005
    lease_s: Annotated[float, Meta(description="how long blocks wait to be fetched")] = 30.0
    pull_timeout_s: Annotated[
        float, Meta(description="how long decode waits for prefill's reply to a fetch")
    ] = 5.0
    kv_load_failure: Annotated[
        Literal["fail", "recompute"], Meta(description="decode's reaction to a transfer that failed")
    ] = "fail"
    cache_dtype: Annotated[str, Meta(description="type of the cache; those of a pair must be equal")] = "auto"
    tp_size: Annotated[int, Meta(description="tensor-parallel size, as reported to others")] = 1
    api_key: Annotated[str | None, Meta(description="bearer token that /v1 demands")] = None
    until_eof: Annotated[
        bool, Meta(description="stop when standard input is closed: the process that started it is gone")
    ] = False
    shutdown_s: Annotated[
        float, Meta(description="on SIGTERM, how long requests in flight may take to finish, in seconds")
    ] = 0.0
    shutdown: Annotated[
        Literal["refuse", "503"],
        Meta(description="and the reply to others meanwhile: no connection, or 503 from all but /metrics"),
    ] = "refuse"
    faults: Annotated[str | None, Meta(description="faults from the start: JSON as for POST /sim/faults")] = (
        None
    )

    def __post_init__(self) -> None:
        at_least_one = (
            "block_size",
            "max_batched_tokens",
            "max_num_seqs",
            "dp_size",
            "mean_output_tokens",
            "tp_size",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kv_blocks < 2:
            raise ValueError("kv_blocks must be at least 2: one block is reserved")
        if self.prefill_tokens_per_s <= 0 or self.decode_tokens_per_s <= 0:
            raise ValueError("speeds must be positive")
        if self.transfer_tokens_per_s <= 0 or min(self.transfer_latency_s, self.lease_s) < 0:
            raise ValueError(
                "transfer_tokens_per_s must be positive, transfer_latency_s and lease_s not negative"
            )
        if self.pd_role == "both" and self.pd_protocol == "sglang":
            raise ValueError("no worker of sglang is both: give it pd_role prefill or decode")
        if self.pd_role and self.pd_protocol == "shared_storage" and self.pd_store is None:
            raise ValueError("shared_storage needs pd_store, the directory that its workers share")
        if not 0 <= self.decode_batch_cost <= 1:
            raise ValueError("decode_batch_cost must be from 0 to 1")
        if self.max_model_len > self.capacity_tokens:
            # vLLM refuses to start: such a request would wait for ever.
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit: {self.capacity_tokens} tokens do"
            )

    @property
    def tiers(self) -> tuple[tuple[str, int], ...]:
        shared = SHARED if self.storage_locality == "REMOTE" else ""
        return ("CPU", self.cpu_blocks), (f"STORAGE{shared}", self.storage_blocks)

    @property
    def window(self) -> tuple[int, int]:
        return self.window_tokens, self.window_blocks

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence can hold when it is alone."""
        return (self.kv_blocks - 1) * self.block_size

    @property
    def context_tokens(self) -> int:
        """Limit of prompt and output together that is in force."""
        return self.max_model_len or min(32_768, self.capacity_tokens)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field of SimConfig; read the result with `from_args`."""
    hints = get_type_hints(SimConfig, include_extras=True)
    for field in fields(SimConfig):
        _add_flag(parser, field.name, hints[field.name], field.default)


def _add_flag(parser: argparse.ArgumentParser, name: str, hint: Any, default: Any) -> None:
    kind, meta = get_args(hint)
    flag = f"--{name.replace('_', '-')}"
    about = f"{meta.description} (default: {_shown(default)})"
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=about)
    elif get_origin(kind) is Literal:
        parser.add_argument(flag, choices=get_args(kind), default=default, help=about)
    elif get_origin(kind) is tuple:
        parser.add_argument(flag, action="append", default=None, metavar="NAME", help=f"{about}; repeatable")
    else:
        #  Single type, or a single type or None.
        one = get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind
        is_duration = one is float and name.endswith("_s") and not name.endswith("_per_s")
        read, unit = (seconds_of, "DURATION") if is_duration else (one, one.__name__.upper())
        parser.add_argument(flag, type=read, default=default, metavar=unit, help=about)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is BUNDLED_TOKENIZER:
        return "the bundled one"
    return "none" if default in (None, (), "") else f"{default}"


def from_args(args: argparse.Namespace) -> SimConfig:
    """Configuration from parsed flags. Raises ValueError for invalid values."""
    given = {field.name: getattr(args, field.name) for field in fields(SimConfig)}
    for name in ("alias", "lora"):
        given[name] = tuple(given[name] or ())
    return SimConfig(**given)
