"""The tenant's cache salt (`tenancy/auth/tenant_salt.py`) in a body, in place of the client's.

Which routes take one is in the table of routes, from vLLM's sources. A route that reads a cache and is not
known to take a salt is rejected where tenants' caches are kept apart: it would reveal other tenants' prompts.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.core.errors import NotSupported
from gateway.core.route_table import Salt, route_of

SALT: Final = "cache_salt"
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refused(path: str) -> NotSupported:
    return NotSupported(
        f"requests to {path} cannot be isolated from the cached prompts of other tenants; use another route"
    )


def salted(path: str, body: bytes, salt: str, top: Mapping[str, Any]) -> bytes:
    """With ours as its last field: one copy of the body, where the client sent none. `top` has the names of
    its fields. Raises NotSupported."""
    how = route_of(path).salt
    if how is Salt.NO_CACHE:
        return body
    if how is not Salt.FIELD:
        raise refused(path)
    if SALT in top:
        body = msgspec.json.encode({name: raw for name, raw in _decode_raw(body).items() if name != SALT})
    end = body.rindex(b"}")
    return b'%b,"cache_salt":"%b"}' % (body[:end], salt.encode())
