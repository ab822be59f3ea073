"""Redirects of workers. None is followed, and none is passed on: Location names the worker's own address.

A worker redirects where something before it wants TLS or another path. Pure.
"""

from collections.abc import Iterable
from typing import Final

from gateway.http.messages import Header
from gateway.http.url import shown

NOT_MODIFIED: Final = 304


def is_redirect(status: int) -> bool:
    return 300 <= status < 400 and status != NOT_MODIFIED


def redirect_of(status: int, headers: Iterable[Header]) -> str:
    """Describe a redirect for operators, with its target."""
    for name, value in headers:
        if name == b"location":
            return f"{status}, a redirect to {shown(value.decode('latin-1'))}, which is not followed"
    return f"{status}, a redirect without a target"
