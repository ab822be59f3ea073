"""The `uuid` of media parts, scoped to a tenant by its cache salt.

vLLM takes a part's `uuid` as the only key of its caches of processed media, for all clients alike: a part
with another tenant's `uuid` and no data is answered from that tenant's medium, and a `uuid` that is another
medium's content hash replaces that medium. HMAC-SHA256(salt, uuid) is neither: no other tenant can name it,
and a tenant's own `uuid` still finds its own media.

A body without the key costs one search; of another one only the top-level fields, and of a list only the
items, that have the key are decoded and written again.
"""

import re
from base64 import urlsafe_b64encode
from hmac import digest
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.requests.request import InferenceRequest

UUID = "uuid"
_KEY = re.compile(rb'"(?:u|\\u0075){2}(?:i|\\u0069)(?:d|\\u0064)"')
"""The key as JSON may spell it."""
MEDIA = ("image", "audio", "video", "vision", "media", "embeds")
"""Found in the type of a media part, or in the name of the field that has its data."""
NO_MEDIA = frozenset({"tools", "functions", "response_format", "structured_outputs", "metadata"})
"""Top-level fields in which a `uuid` is the client's own data."""

_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def scope_media(request: InferenceRequest, salt: str) -> None:
    """Replaces each media `uuid` in the body. Raises InvalidRequest for a body that cannot be looked into."""
    if _KEY.search(request.body) is None:
        return
    if request.is_crowded:
        raise InvalidRequest("the body holds too many values for a media 'uuid'; leave the 'uuid' out")
    try:
        request.body = scoped(request.body, salt.encode())
    except UNREADABLE as exc:
        raise InvalidRequest(f"a field beside a 'uuid' cannot be read: {exc}") from exc


def scoped(body: bytes, salt: bytes) -> bytes:
    """The body with its media scoped. Raises UNREADABLE."""
    fields = _decode_fields(body)
    for name, raw in fields.items():
        if name not in NO_MEDIA and _has_key(raw):
            fields[name] = _scoped_value(raw, salt)
    return msgspec.json.encode(fields)


def _scoped_value(raw: msgspec.Raw, salt: bytes) -> msgspec.Raw:
    if bytes(memoryview(raw)[:1]) != b"[":
        return _rewritten(raw, salt)
    items = _decode_items(raw)
    return msgspec.Raw(
        msgspec.json.encode([_rewritten(item, salt) if _has_key(item) else item for item in items])
    )


def _rewritten(raw: msgspec.Raw, salt: bytes) -> msgspec.Raw:
    value = _decode(raw)
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if each.get(UUID) is not None and is_media(each):
                each[UUID] = _name(each[UUID], salt)
            if each.get("type") != "tool_use":  # its input is the model's own text
                pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return msgspec.Raw(msgspec.json.encode(value))


def is_media(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    names = (*part, kind) if isinstance(kind, str) else tuple(part)
    return any([mark in name for name in names for mark in MEDIA])


def _name(uuid: object, salt: bytes) -> str:
    """An engine reads whatever it is given as text."""
    text = uuid.encode() if isinstance(uuid, str) else msgspec.json.encode(uuid)
    return urlsafe_b64encode(digest(salt, text, "sha256")).rstrip(b"=").decode()


def _has_key(raw: msgspec.Raw) -> bool:
    return _KEY.search(memoryview(raw)) is not None
