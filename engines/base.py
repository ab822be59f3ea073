"""What an engine adapter is, on this side of the house.

The protocol and its values lie in `gateway.core.engine`, for the gateway's shells speak of them and
import no engine. An adapter takes them from here.
"""

from gateway.core.engine import (
    Engine,
    EngineFlags,
    EngineMetrics,
    EnginePaths,
    EventSource,
    ModelInfo,
)

__all__ = ["Engine", "EngineFlags", "EngineMetrics", "EnginePaths", "EventSource", "ModelInfo"]
