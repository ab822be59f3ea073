"""Role, connector, hit rule and concurrency limit from vLLM's `/server_info`, which exists with
VLLM_SERVER_DEV_MODE=1 only.

    connector   by the name of its class; others are not used for disaggregated pairs
    mooncake    its bootstrap server listens on a port of its own, where only prefill workers have one
    hit rule    one block less with EAGLE, MTP and the like; a match unit where the engine reports one
    limit       `--max-num-seqs`, of each data-parallel rank

Older versions write their configuration as text for people, in any format requested, and similar engines have
other contents under that path: neither reports anything here, and both are workers.
"""

from typing import Annotated

from msgspec import Meta, Struct, json

from engines.wire import parse
from gateway.core.engine import EngineInfo
from gateway.core.figure_bounds import port
from gateway.core.hit_rule import HitRule
from gateway.core.worker import Transfer

INFO = "/server_info?config_format=json"
CONNECTORS = {
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "MooncakeConnector": "mooncake",
    "ExampleConnector": "shared_storage",
    "SharedStorageConnector": "shared_storage",
    "LMCacheConnectorV1": "shared_storage",
    "LMCacheMPConnector": "shared_storage",
    "MooncakeStoreConnector": "shared_storage",
}
DROPPING = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Methods of speculation that drop the last block of each hit: their drafts need the hidden states of its
tokens (`SpeculativeConfig.use_eagle_block_drop`, 0.32)."""
LOOKS_AHEAD = (0, 33)
"""First version that, without a KV connector, hashes the tokens behind a block too, and drops none."""
MAX_UNIT_TOKENS = 1 << 20
"""More than the match unit of any hybrid model (some thousand tokens)."""
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


class KvTransfer(Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    engine_id: str | None = None


class Cache(Struct, frozen=True):
    cache_dtype: str | None = None
    cache_hit_alignment_tokens: Annotated[int, Meta(ge=1, le=MAX_UNIT_TOKENS)] | str | None = None


class Parallel(Struct, frozen=True):
    tensor_parallel_size: int | None = None


class Speculation(Struct, frozen=True):
    method: str | None = None
    disable_eagle_block_drop: bool = False


class Scheduling(Struct, frozen=True):
    max_num_seqs: int | None = None


class VllmConfig(Struct):
    kv_transfer_config: KvTransfer | None = None
    cache_config: Cache = Cache()
    parallel_config: Parallel = Parallel()
    speculative_config: Speculation | str | None = None
    scheduler_config: Scheduling | str | None = None


class VllmEnv(Struct, frozen=True):
    VLLM_MOONCAKE_BOOTSTRAP_PORT: int | None = None


class ServerInfo(Struct):
    vllm_config: VllmConfig | str | None = None
    vllm_env: VllmEnv = VllmEnv()


_info = json.Decoder(ServerInfo).decode


def parse_server_info(body: bytes) -> EngineInfo:
    """Parse the response. Raises DecodeError."""
    info = parse("vllm /server_info", _info, body)
    config, bootstrap = info.vllm_config, port(info.vllm_env.VLLM_MOONCAKE_BOOTSTRAP_PORT)
    if not isinstance(config, VllmConfig):
        return EngineInfo()
    connector_config = config.kv_transfer_config
    connector = CONNECTORS.get(connector_config.kv_connector or "") if connector_config else None
    hit_rule, scheduling = _hit_rule(config), config.scheduler_config
    max_running = scheduling.max_num_seqs if isinstance(scheduling, Scheduling) else None
    if connector_config is None or connector is None:
        return EngineInfo(hit_rule=hit_rule, max_running=max_running)
    transfer = Transfer(
        connector,
        f"*:{bootstrap}" if bootstrap and connector == "mooncake" else None,
        connector_config.engine_id,
        cache_dtype=config.cache_config.cache_dtype,
        tensor_parallel=config.parallel_config.tensor_parallel_size,
    )
    role = ROLES.get(connector_config.kv_role or "")
    return EngineInfo(role=role, transfer=transfer, hit_rule=hit_rule, max_running=max_running)


def _hit_rule(config: VllmConfig) -> HitRule:
    speculation, unit = config.speculative_config, config.cache_config.cache_hit_alignment_tokens
    drops = (
        isinstance(speculation, Speculation)
        and speculation.method in DROPPING
        and not speculation.disable_eagle_block_drop
    )
    has_connector = config.kv_transfer_config is not None and bool(config.kv_transfer_config.kv_connector)
    until = None if has_connector else LOOKS_AHEAD
    return HitRule(unit if isinstance(unit, int) else 0, drops, until if drops else None)
