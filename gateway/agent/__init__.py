"""`kvgate agent`: beside an engine, it keeps what that engine holds and tells it to gateways."""

import os

# gRPC's own lines on stderr, read when it is loaded: what matters comes as an exception, and is logged once.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
