"""SDKs of OpenAI and Anthropic, each loaded where it is first used: `sdks.openai`, `sdks.anthropic`.

A load takes about a CPU second, which each process that collects tests would pay for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic
    import openai

__all__ = ["anthropic", "openai"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(name)
