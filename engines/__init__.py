"""One adapter per engine: its wire formats, metric names and paths; imports `gateway.core` only.

To add an engine: `engines/<name>.py` with an `Engine` (gateway/core/engine.py), a line here, golden
payloads, a test.
"""

from engines.vllm import Vllm
from gateway.core.engine import Engine

ENGINES: dict[str, Engine] = {
    "vllm": Vllm(),
}
