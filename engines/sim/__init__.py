"""A vLLM worker without a model: its prefix cache, its wire and its manners, for tests and benchmarks.

config     what it is like, and its flags             words      what it says
cache      the prefix cache (pure)                    params     what a request asks for
scheduler  batching, with time as a cost (pure)       openai, dialects   how answers are put
wire       KV events as bytes                         server, admin      HTTP
publisher  the event stream                           faults     what goes wrong on request
rank       one engine rank in a loop                  worker     the whole, start to stop
"""

from engines.sim.cli import main
from engines.sim.config import SimConfig, add_flags, from_args
from engines.sim.server import Texts
from engines.sim.worker import Sim, run

__all__ = ["Sim", "SimConfig", "Texts", "add_flags", "from_args", "main", "run"]
