"""KV events on their way from a worker's publisher into the index."""

import os

# gRPC's own lines on stderr, read when it is loaded: what matters comes as an exception, and is logged once.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
