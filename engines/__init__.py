"""One adapter per engine: its wire formats, metric names and paths; imports `gateway.core` only.

To add an engine: `engines/<name>.py` with an `Engine` (gateway/core/engine.py), a line here, golden
payloads, a test.
"""

from engines.openai import OpenAi
from engines.sglang import Sglang
from engines.trtllm import TrtLlm
from engines.vllm import Vllm
from gateway.core.engine import Engine

ENGINES: dict[str, Engine] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "trtllm": TrtLlm(),
    "openai": OpenAi(),
}
"""The last has no marks of its own: whatever else speaks OpenAI."""
