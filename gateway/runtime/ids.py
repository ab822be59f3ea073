"""Unguessable ids of decisions, and of requests without an id from their client.

The system's randomness is drawn a page at a time: a system call per id is a twentieth of a small request's
cost.
"""

import os
from typing import Final

_PAGE_BYTES: Final = 4096
_page = b""
_at = 0


def new_id(num_bytes: int = 16) -> str:
    """Return `num_bytes` of the system's randomness as hex digits; no byte is used twice."""
    global _page, _at
    if _at + num_bytes > len(_page):
        _page, _at = os.urandom(_PAGE_BYTES), 0
    taken = _page[_at : _at + num_bytes]
    _at += num_bytes
    return taken.hex()


def forget() -> None:
    """Discard the page, since a forked process must draw its own."""
    global _page, _at
    _page, _at = b"", 0


os.register_at_fork(after_in_child=forget)
