"""Searches of large bodies by windows. Each call of a search keeps the interpreter lock to its end, and 60 MB
of nearly what is looked for take half a second: a thread that searches window by window lets the event loop
go on.

Never compiled (`setup.py`): machine code would keep the lock from the first window to the last.
"""

import re

WINDOW = 64 << 10


def find(body: bytes, what: bytes, start: int = 0) -> int:
    """Return the place of the first `what` from `start` on, -1 without one, as `bytes.find`."""
    for at in range(start, len(body), WINDOW):
        found = body.find(what, at, at + WINDOW + len(what) - 1)
        if found >= 0:
            return found
    return -1


def has(body: bytes | memoryview, pattern: "re.Pattern[bytes]", longest: int) -> bool:
    """True if the pattern is found in the body; `longest` is the most bytes that a match has."""
    starts = range(0, len(body), WINDOW)
    return any(pattern.search(body, at, at + WINDOW + longest - 1) is not None for at in starts)


def count(body: bytes, what: bytes, most: int) -> int:
    """Return how often one byte occurs; of a body that has more than `most` perhaps not all."""
    num = 0
    for at in range(0, len(body), WINDOW):
        num += body.count(what, at, at + WINDOW)
        if num > most:
            break
    return num
