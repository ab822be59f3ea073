"""The composition root: the only folder that knows every concrete class.

gateway       one process, as programs use it           gateway_parts  its components, in their order
component     what a part may do                        component_list started, stopped, reconfigured
parts/        one part a file                           index_backend  index backends by name
reloads       when the configuration is read again      validation     checks that need no worker
bundled       the simulated engine's tokenizer
"""

from gateway.app.bundled import bundled_tokenizer, simulate, simulator_parser
from gateway.app.gateway import Gateway

__all__ = ["Gateway", "bundled_tokenizer", "simulate", "simulator_parser"]
