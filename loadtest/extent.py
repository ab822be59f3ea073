"""Extent of a benchmark, from the environment.

SMOKE=1 runs all of its code within seconds: figures mean nothing, are compared with no goal and not written.
FULL=1 runs everything, which may take hours. Without either it ends within five minutes on two cores.
"""

import os
from typing import TypeVar

T = TypeVar("T")


def is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


IS_SMOKE = is_set("SMOKE")
IS_FULL = is_set("FULL") and not IS_SMOKE


def extent(smoke: T, default: T, full: T | None = None) -> T:
    """The value for this run; `full` only where it differs from `default`."""
    if IS_SMOKE:
        return smoke
    return full if IS_FULL and full is not None else default
