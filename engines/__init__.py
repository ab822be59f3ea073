"""One adapter per engine: its wire formats, metric names and paths; imports `gateway.core` only.

To add an engine: `engines/<name>.py` with an `Engine` (base.py), a line here, golden payloads, a test.
"""

from engines.base import Engine
from engines.vllm import Vllm

ENGINES: dict[str, Engine] = {
    "vllm": Vllm(),
}
