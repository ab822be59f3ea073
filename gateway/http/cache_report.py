"""Request option that makes the engine announce the whole prefix hit of a prompt.

vLLM from 0.26 on stores no event for a prefix hit unless the request has `kv_cache_report_mode` (see
`requests/parsing.py`, which removes a client's own). Other engines ignore the field.
"""

import re
from typing import Any

import msgspec

from gateway.core.json_values import decode, encode

_NAME = b'"vllm_xargs"'
_ASK = {"kv_cache_report_mode": "full"}
_FIELD = b',"vllm_xargs":{"kv_cache_report_mode":"full"}}'
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def asking(body: bytes) -> bytes:
    """Add the option to a parsed JSON body; everything else in it stays as it is."""
    if _NAME not in body:
        end = body.rindex(b"}")
        return body[:end] + _FIELD
    fields: dict[str, Any] = dict(_decode(body))
    given = decode(fields.get("vllm_xargs", b"null"))
    if given is not None and not isinstance(given, dict):
        return body  # the engine will reject it
    fields["vllm_xargs"] = (given or {}) | _ASK
    return encode(fields)


def can_report(since: tuple[int, ...] | None, version: str | None) -> bool:
    """Return True if an engine of `version` obeys the option; `since` is the first version that does, if
    known."""
    if since is None or version is None:
        return False
    found = re.match(r"(\d+(?:\.\d+)*)", version)
    return found is not None and tuple(map(int, found[1].split("."))) >= since
