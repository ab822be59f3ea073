"""One adapter per engine: its wire formats, metric names and paths; imports `gateway.core` only.

To add an engine: `engines/<name>.py` with an `Engine` (gateway/core/engine.py), a line here, golden
payloads, a test. To add a KV connector: `engines/<name>.py` with a `Handoff` (gateway/core/kv_connector.py),
a
line here, a test.
"""

from engines.connectors.mooncake import Mooncake
from engines.connectors.nixl import Nixl
from engines.connectors.sglang_bootstrap import Bootstrap
from engines.connectors.shared_storage import SharedStorage
from engines.connectors.trtllm_context import Context
from engines.openai import OpenAi
from engines.sglang import Sglang
from engines.trtllm import TrtLlm
from engines.vllm import Vllm
from gateway.core.engine import Engine
from gateway.core.kv_connector import Handoff

ENGINES: dict[str, Engine] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "trtllm": TrtLlm(),
    "openai": OpenAi(),
}
"""The last has no marks of its own: whatever else speaks OpenAI."""

_HANDOFFS: tuple[Handoff, ...] = (Nixl(), Mooncake(), SharedStorage(), Bootstrap(), Context())
HANDOFFS: dict[str, Handoff] = {handoff.name: handoff for handoff in _HANDOFFS}
"""How a prompt goes from prefill to decode workers, by connector."""
CONNECTORS = {"vllm": "nixl", "sglang": "bootstrap", "trtllm": "context"}
"""By engine, where neither the worker nor its operator says which."""
