"""Causes of errors in words for people: without numbers of the operating system, and without what libraries
put around them."""

import os
import re

_NOISE = re.compile(r"(?:\[Errno -?\d+\]|Error -?\d+ connecting to [^\s]+\.|ssl:default) ?")


def cause_of(exc: BaseException) -> str:
    """Describe why a file, an address or a peer is of no use: "Connection refused"."""
    inner = getattr(exc, "os_error", None)  # aiohttp's, beside the settings of its connection
    if isinstance(inner, OSError):
        exc = inner
    if isinstance(exc, TimeoutError) and not getattr(exc, "errno", None):
        return "no answer in time"
    if isinstance(exc, OSError):
        if exc.errno is not None and exc.errno > 0:
            return os.strerror(exc.errno)
        if exc.strerror:
            return exc.strerror
    text = _NOISE.sub("", str(exc)).strip().rstrip(".")
    return text or type(exc).__name__
