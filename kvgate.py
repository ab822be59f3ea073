"""kvgate as a library: `async with kvgate.connect(["http://10.0.0.1:8000"]) as router: ...`."""

from gateway import Decision, InferenceRequest, Router, __version__, request
from gateway.library import connect

__all__ = ["Decision", "InferenceRequest", "Router", "__version__", "connect", "request"]
