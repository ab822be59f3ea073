"""Sidecar of an engine (`kvgate agent`): keeps the index of its blocks and serves it to gateways.

sidecar   events in, a port out     service   the gRPC service     config   flags
"""

import os

#  gRPC's own lines on stderr, configured when it is loaded: errors come as exceptions, and are logged once.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
