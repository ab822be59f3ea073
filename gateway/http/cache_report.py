"""Asks the engine to announce all that it finds of a request's prompt, where it would be silent.

vLLM from 0.26 on stores no event for a prefix hit unless the request says so (`kv_cache_report_mode`, see
`core/requests/request.py`, which takes a client's own away). Others ignore the field.
"""

import re
from typing import Any

import msgspec

_NAME = b'"vllm_xargs"'
_ASK = {"kv_cache_report_mode": "full"}
_FIELD = b',"vllm_xargs":{"kv_cache_report_mode":"full"}}'
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def asking(body: bytes) -> bytes:
    """A request's body that asks; everything else in it stays as it is. Bodies that were parsed before."""
    if _NAME not in body:
        end = body.rindex(b"}")
        return body[:end] + _FIELD
    fields: dict[str, Any] = dict(_decode(body))
    given = msgspec.json.decode(fields.get("vllm_xargs", b"null"))
    if given is not None and not isinstance(given, dict):
        return body  # the engine will say what is wrong with it
    fields["vllm_xargs"] = (given or {}) | _ASK
    return msgspec.json.encode(fields)


def can_report(since: tuple[int, ...] | None, version: str | None) -> bool:
    """Whether an engine of `version` obeys, if its adapter knows the first that does."""
    if since is None or version is None:
        return False
    told = re.match(r"(\d+(?:\.\d+)*)", version)
    return told is not None and tuple(map(int, told[1].split("."))) >= since
