"""The composition root: the only folder that knows every concrete class.

gateway       all parts of one process, put together    workers        what knows the workers
admin_wiring  the parts of the admin API                bundled        the simulated engine's tokenizer
reconfigure   another configuration, while it runs      reloads        when that is read
front_end     limits of the client port, routes         index_backend  index backends by name
validation    checks that need no worker                 grpc_ports     picker, decisions, health, scaler
scaling       what the advice is made of
"""

from gateway.app.bundled import bundled_tokenizer, simulate, simulator_parser
from gateway.app.gateway import Gateway

__all__ = ["Gateway", "bundled_tokenizer", "simulate", "simulator_parser"]
