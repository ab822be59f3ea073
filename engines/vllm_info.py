"""Role and connector from vLLM's `/server_info`, which exists with VLLM_SERVER_DEV_MODE=1 only.

    connector   by the name of its class; others are not used for disaggregated pairs
    mooncake    its bootstrap server listens on a port of its own, where only prefill workers have one

Older versions write their configuration as text for people, in any format requested, and similar engines have
other contents under that path: neither reports anything here, and both are workers.
"""

from msgspec import Struct, json

from engines.wire import parse
from gateway.core.bounds import port
from gateway.core.engine import EngineInfo
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
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


class KvTransfer(Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    engine_id: str | None = None


class Cache(Struct, frozen=True):
    cache_dtype: str | None = None


class Parallel(Struct, frozen=True):
    tensor_parallel_size: int | None = None


class VllmConfig(Struct):
    kv_transfer_config: KvTransfer | None = None
    cache_config: Cache = Cache()
    parallel_config: Parallel = Parallel()


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
    if connector_config is None or connector is None:
        return EngineInfo()
    transfer = Transfer(
        connector,
        f"*:{bootstrap}" if bootstrap and connector == "mooncake" else None,
        connector_config.engine_id,
        cache_dtype=config.cache_config.cache_dtype,
        tensor_parallel=config.parallel_config.tensor_parallel_size,
    )
    return EngineInfo(role=ROLES.get(connector_config.kv_role or ""), transfer=transfer)
