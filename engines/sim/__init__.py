"""Simulated vLLM worker without a model: prefix cache, wire and API behaviour, for tests and benchmarks.

config     its properties and flags               words      the generated text
cache      the prefix cache (pure)                params     request parameters
scheduler  batching, with time as a cost (pure)   openai, dialects   response formats
wire       KV events as bytes                     server, admin      HTTP
publisher  the event stream                       faults     injected faults
rank       one engine rank in a loop              worker     the whole, start to stop
forms      answers as tool calls, or JSON of a schema
"""

from engines.sim.cli import main
from engines.sim.config import SimConfig, add_flags, from_args
from engines.sim.server import TextModel
from engines.sim.worker import Sim, run

__all__ = ["Sim", "SimConfig", "TextModel", "add_flags", "from_args", "main", "run"]
