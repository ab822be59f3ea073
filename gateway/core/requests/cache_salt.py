"""Bodies that go on under their tenant's salt (`tenancy/auth/tenant_salt.py`), in place of the client's.

What engines read of it is of vLLM's sources. What reads a cache and takes no salt, as far as we know, is
refused where tenants are to be kept apart: it would tell of all of them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.errors import NotSupported

SALT = "cache_salt"
SALTED = frozenset(
    {
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/pooling",
        "/classify",
        "/v1/classify",
        "/generative_scoring",
    }
)
UNSALTED = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/render",
        "/v1/responses/render",
        "/cohere/v2/chat/render",
    }
)
"""What engines answer without a look at their caches."""

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refused(path: str) -> NotSupported:
    return NotSupported(
        f"what goes to {path} cannot be salted (--tenant-salt), so it would tell of other tenants' prompts"
    )


def salted(path: str, body: bytes, salt: str, top: Mapping[str, Any]) -> bytes:
    """With ours as its last field: one copy of the body, where the client sent none. `top` has the names of
    its fields. Raises NotSupported."""
    if path in UNSALTED:
        return body
    if path not in SALTED:
        raise refused(path)
    if SALT in top:
        body = msgspec.json.encode({name: raw for name, raw in _decode_raw(body).items() if name != SALT})
    end = body.rindex(b"}")
    return b'%b,"cache_salt":"%b"}' % (body[:end], salt.encode())
