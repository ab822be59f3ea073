"""Bodies of a megabyte and more: what routing reads of them, without objects for all that they hold.

JSON of many small values takes some 200 bytes of memory for three of its own (`{},`), and a long text with
one emoji four for each character. So long texts are left out (`abridged.py`) of what is parsed on the event
loop, and a body of very many values (`is_crowded`) is not looked into at all: it is routed by load.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec

from gateway.apis.abridged import abridged
from gateway.core.decoding import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.requests.chat_messages import Messages
from gateway.core.requests.field_types import check_messages, check_prompt
from gateway.core.requests.model_name import decide
from gateway.core.requests.request import (
    SCALARS,
    STATE_FIELDS,
    InferenceRequest,
    completed,
    decode_value,
    names_of,
    num_known_of,
)
from gateway.core.requests.routes import Kind, route_of

EXACT_BYTES = 16 << 20
"""Up to this the values of a body are counted exactly, without what its strings hold: 3 ms for a megabyte."""
PIECE_BYTES = 1 << 20
VALUE_BYTES, ID_BYTES = 200, 40
"""About what a value takes, decoded and handed to a template; and a token id."""
ROOM_BYTES = 50 << 20
LONG_BYTES = 64 << 10
"""A text of the top level that is longer is not decoded."""
MAX_OTHER_BYTES = 2 << 20
"""Of fields that no prompt is made of, in a crowded body: a million names take 25 times their bytes."""

_OTHERS = bytes(byte for byte in range(256) if byte not in b'",[{')
_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Usual(msgspec.Struct):
    """Fields that may well be long; others are skipped without an object for any of them."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tokens: msgspec.Raw = msgspec.Raw()
    queries: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    texts: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()
    text_2: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: str


_decode_usual = msgspec.json.Decoder(_Usual).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def parse_large(
    path: str,
    body: bytes,
    known: Container[bytes] = frozenset(),
    *,
    keeps_transfer: bool = False,
    model: str | None = None,
    default: str | None = None,
    salt: str | None = None,
    models: Container[str] | None = None,
) -> InferenceRequest:
    """The request of a large body, as `parse_request` makes it; what is wrong within messages or a prompt is
    left to the engine."""
    kind, core = route_of(path).kind, abridged(body, LONG_BYTES)
    crowded = is_crowded(core, len(body))
    if kind is Kind.PASS or kind is Kind.AGENT:
        top = _scalars(core, crowded=crowded)
    else:
        top = top_of(core, decode_value if kind is Kind.CHAT else _decode_any, crowded=crowded)
    writes_model = decide(top, model, default, is_limited=models is not None)
    messages: Messages | None = None
    if kind is Kind.CHAT:
        messages = _messages(top, known, salt)
        messages = messages if core is body else None  # names are those of whole messages
    elif kind is Kind.COMPLETION and type(top.get("prompt")) is not msgspec.Raw:
        check_prompt(top)
    request = completed(
        kind,
        path,
        body,
        top,
        None,
        messages,
        keeps_transfer=keeps_transfer,
        salt=salt,
        models=models,
        writes_model=writes_model,
    )
    request.is_crowded = crowded
    return request


def _scalars(body: bytes, *, crowded: bool) -> dict[str, Any]:
    top: dict[str, Any] = dict(fields_of(body, crowded=crowded))
    try:
        return top | {name: _decode_any(top[name]) for name in (*SCALARS, *STATE_FIELDS) if name in top}
    except UNREADABLE as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc


def _messages(top: dict[str, Any], known: Container[bytes], salt: str | None) -> Messages | None:
    """None where they are too many to be looked into. Raises InvalidRequest."""
    raws = top.get("messages")
    if type(raws) is msgspec.Raw:
        if first_byte(raws) != b"[":
            raise InvalidRequest("'messages' must be a list of messages", param="messages")
        return None
    if type(raws) is not list:
        check_messages(top)
    assert isinstance(raws, list)
    names: Sequence[bytes]
    setting, names = names_of(top["model"], top, raws, salt)
    num_known = num_known_of(names, known)
    check_roles(raws, num_known)
    return Messages(raws, names, setting, num_known, top, None)


def is_crowded(body: bytes, num_bytes: int) -> bool:
    """Whether the values of a body would take more memory than a body of `num_bytes` allows."""
    room = ROOM_BYTES + 2 * num_bytes
    if _num_marks(body, room // VALUE_BYTES) * VALUE_BYTES <= room:
        return False
    if len(body) > EXACT_BYTES:
        return not _are_few_ids(body, room)
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    if sum(map(len, bare.split(b'"')[::2])) * VALUE_BYTES <= room:
        return False
    return not _are_few_ids(body, room)


def _num_marks(body: bytes, most: int) -> int:
    """Commas and opened brackets, wherever they stand; counted until they are more than `most`."""
    num = 0
    for start in range(0, len(body), PIECE_BYTES):
        end = start + PIECE_BYTES
        num += body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)
        if num > most:
            break
    return num


def _are_few_ids(body: bytes, room: int) -> bool:
    return 0 < num_ids(body) * ID_BYTES <= room


def fields_of(body: bytes, *, crowded: bool) -> dict[str, msgspec.Raw]:
    """The top level as it came. Raises InvalidRequest."""
    try:
        if crowded:
            usual = _decode_usual(body)
            known = sum([_size(getattr(usual, name)) for name in usual.__struct_fields__])
            if len(body) - known > MAX_OTHER_BYTES:
                raise InvalidRequest(
                    "the body holds too many values outside of its prompt: leave the other fields out"
                )
        fields = _decode_raw(body)
    except InvalidRequest:
        raise
    except UNREADABLE as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    for name in SCALARS:
        if name in fields and _size(fields[name]) > LONG_BYTES:
            raise InvalidRequest(f"'{name}' is longer than {LONG_BYTES} bytes", param=name)
    return fields


def top_of(body: bytes, decode: Callable[[msgspec.Raw], Any], *, crowded: bool) -> dict[str, Any]:
    """The top level decoded, but for long texts, and in a crowded body for whatever is long. Raises
    InvalidRequest."""
    fields = fields_of(body, crowded=crowded)
    try:
        return {name: raw if _is_kept(raw, crowded) else decode(raw) for name, raw in fields.items()}
    except UNREADABLE as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc


def check_roles(raws: Sequence[msgspec.Raw], first: int) -> None:
    """Raises InvalidRequest for a message from `first` on that has no role; nothing else of it is decoded."""
    for number in range(first, len(raws)):
        try:
            _decode_message(raws[number])
        except UNREADABLE as exc:
            where = f"messages[{number}]"
            raise InvalidRequest(f"'{where}' must be an object with a role: {exc}", param=where) from exc


def num_ids(body: bytes) -> int:
    """How many token ids the prompt of a body is a list of; 0 for anything else."""
    try:
        raw = memoryview(_decode_usual(body).prompt)
    except UNREADABLE:
        return 0
    num_bytes, num = raw.nbytes, 0
    if bytes(raw[:1]) != b"[":
        return 0
    for start in range(1, num_bytes - 1, PIECE_BYTES):
        piece = bytes(raw[start : min(start + PIECE_BYTES, num_bytes - 1)])
        if piece.translate(None, b"0123456789, \t\r\n"):
            return 0
        num += piece.count(b",")
    return num + 1


def _is_kept(raw: msgspec.Raw, crowded: bool) -> bool:
    return _size(raw) > LONG_BYTES and (crowded or first_byte(raw) == b'"')


def first_byte(raw: msgspec.Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
