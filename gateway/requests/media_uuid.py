"""The `uuid` of media parts, scoped to a tenant by its cache salt.

vLLM takes a part's `uuid` as the only key of its caches of processed media, for all clients alike: a part
with another tenant's `uuid` and no data is answered from that tenant's medium, and a `uuid` that is another
medium's content hash replaces that medium. HMAC-SHA256(salt, uuid) is neither: no other tenant can name it,
and a tenant's own `uuid` still finds its own media.

A body without the key costs one search; of another one only the objects and lists around a key are split and
written again, and none of their texts is decoded.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hmac import digest
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import decode, encode
from gateway.core.request import InferenceRequest
from gateway.core.windowed_search import count, has

UUID = "uuid"
KEY = re.compile(rb'"(?:u|\\u0075){2}(?:i|\\u0069)(?:d|\\u0064)"')
"""The key as JSON may spell it."""
LONGEST_KEY = 26
"""Bytes of the longest spelling: six for each letter, and two quotes."""
MEDIA = ("image", "audio", "video", "vision", "media", "embeds")
"""Found in the type of a media part, or in the name of the field that has its data."""
MAX_COMMAS = 1 << 17
"""Commas of a body with a `uuid`: each value takes a moment, and 6 MB of text have no more."""
MAX_DEPTH = 16
"""Objects and lists around a `uuid`: each is split once more. A part lies four deep, a tool's result six."""
LONG_BYTES = 256
"""A type that is longer is not decoded, and counts as a medium's."""
NO_MEDIA = frozenset({"tools", "functions", "response_format", "structured_outputs", "metadata"})
"""Top-level fields in which a `uuid` is the client's own data."""

Rewrite = Callable[[bytes, bytes], bytes]
"""A body and a salt to the body with its media scoped."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def scope_media(request: InferenceRequest, salt: str, rewrite: Rewrite | None = None) -> None:
    """Replaces each media `uuid` in the body, by `rewrite` where that is given. Raises InvalidRequest for a
    body that cannot be looked into."""
    body = request.body
    if not has_key(body):
        return
    if request.is_crowded or count(body, b",", MAX_COMMAS) > MAX_COMMAS:
        raise InvalidRequest("the body has too many values beside a media 'uuid'; leave the 'uuid' out")
    try:
        request.body = (rewrite or scoped)(body, salt.encode())
    except UNREADABLE as exc:
        raise InvalidRequest(f"a field beside a 'uuid' cannot be read: {exc}") from exc


def scoped(body: bytes, salt: bytes) -> bytes:
    """The body with its media scoped. Raises UNREADABLE, or InvalidRequest for a key that lies too deep."""
    fields = _decode_fields(body)
    found = {name: raw for name, raw in fields.items() if name not in NO_MEDIA and has_key(raw)}
    made = {name: msgspec.Raw(b"".join(scoped_parts(raw, salt))) for name, raw in found.items()}
    return msgspec.json.encode(fields | made)


def scoped_parts(raw: msgspec.Raw, salt: bytes, depth: int = 0) -> list[bytes | memoryview]:
    """The parts of a value that has the key, with its media scoped: only what lies on the way to a key is
    split, no text is decoded, and nothing is copied. Raises UNREADABLE, or InvalidRequest for a key that lies
    too deep."""
    first = bytes(memoryview(raw)[:1])
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"a media 'uuid' is nested over {MAX_DEPTH} levels deep; leave it out")
    parts: list[bytes | memoryview] = []
    if first == b"[":
        for item in _decode_items(raw):
            parts += [b"," if parts else b"[", *_value_parts(item, salt, depth)]
        return [*parts, b"]"]
    if first == b"{":
        fields = _decode_fields(raw)
        is_looked_into = _scope_own(fields, salt)
        for name, value in fields.items():
            parts += [b"," if parts else b"{", msgspec.json.encode(name), b":"]
            parts += _value_parts(value, salt, depth) if is_looked_into else [memoryview(value)]
        return [*parts, b"}"]
    return [memoryview(raw)]


def _value_parts(raw: msgspec.Raw, salt: bytes, depth: int) -> list[bytes | memoryview]:
    return scoped_parts(raw, salt, depth + 1) if has_key(raw) else [memoryview(raw)]


def _scope_own(fields: dict[str, msgspec.Raw], salt: bytes) -> bool:
    """Replace an object's own `uuid`; False if its values are not looked into."""
    kind = _kind(fields["type"]) if "type" in fields else None
    if UUID in fields and is_media({**fields, "type": kind}):
        uuid = decode(fields[UUID])
        if uuid is not None:
            fields[UUID] = msgspec.Raw(encode(_name(uuid, salt)))
    return kind != "tool_use"  # its input is the model's own text


def _kind(raw: msgspec.Raw) -> object:
    return decode(raw) if len(memoryview(raw)) <= LONG_BYTES else MEDIA[0]


def is_media(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    names = (*part, kind) if isinstance(kind, str) else tuple(part)
    return any([mark in name for name in names for mark in MEDIA])


def _name(uuid: object, salt: bytes) -> str:
    """An engine reads whatever it is given as text."""
    text = uuid.encode() if isinstance(uuid, str) else encode(uuid)
    return urlsafe_b64encode(digest(salt, text, "sha256")).rstrip(b"=").decode()


def has_key(raw: bytes | msgspec.Raw) -> bool:
    return has(memoryview(raw), KEY, LONGEST_KEY)
