"""Engine adapters, one per engine: wire formats, metric names and paths. They import `gateway.core` only.

To add an engine: `engines/<name>.py` with an `Engine` (gateway/core/engine.py), a line here, its data
(tests/support/engine_data.py), a test. To add a KV connector: `engines/connectors/<name>.py` with a
`KvConnector` (gateway/core/kv_connector.py), a line here, a test. CONTRIBUTING.md names the pages of both.
"""

from engines.connectors.mooncake import Mooncake
from engines.connectors.nixl import Nixl
from engines.connectors.sglang_bootstrap import SglangBootstrap
from engines.connectors.shared_storage import SharedStorage
from engines.connectors.trtllm_context import TrtLlmContext
from engines.llamacpp import LlamaCpp
from engines.mlx import Mlx
from engines.openai import OpenAi
from engines.sglang import Sglang
from engines.trtllm import TrtLlm
from engines.vllm import Vllm
from gateway.core.engine import Engine
from gateway.core.kv_connector import KvConnector

ENGINES: dict[str, Engine] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "trtllm": TrtLlm(),
    "llamacpp": LlamaCpp(),
    "mlx": Mlx(),
    "openai": OpenAi(),
}
"""Engines by name; the last has no marks of its own and stands for any other that speaks OpenAI's API."""

_KV_CONNECTORS: tuple[KvConnector, ...] = (
    Nixl(),
    Mooncake(),
    SharedStorage(),
    SglangBootstrap(),
    TrtLlmContext(),
)
KV_CONNECTORS: dict[str, KvConnector] = {connector.name: connector for connector in _KV_CONNECTORS}
"""KV connectors by name, which transfer a prompt from prefill to decode workers."""
DEFAULT_CONNECTORS = {"vllm": "nixl", "sglang": "bootstrap", "trtllm": "context"}
"""Default connector of each engine, where neither the worker nor its operator names one."""
