"""Bodies of a megabyte and more, or of very many values: what routing reads of them, without objects for all
that they hold.

    body ─ outline (places, counts, limits) ─► core: short fields as they came, parsed as any body;
                                               long ones are stood in for, and put back if a field changes

JSON of many small values takes some 200 bytes of memory for three of its own (`{},`), and a long text with
one emoji four for each character. A body of very many values (`is_crowded`) is not decoded at all: it is
routed by load. Runs in a thread (`proxy/large_intake.py`), each step in short calls: see `outline.py`.
"""

from collections.abc import Container, Iterable, Mapping
from io import BytesIO
from typing import Any

import msgspec

from gateway.core.body_text import why_unreadable
from gateway.core.chat_messages import Messages
from gateway.core.decode_errors import LARGE, UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.request import STATE_FIELDS, InferenceRequest
from gateway.core.route_table import RouteKind, route_of
from gateway.requests.adapter_field import FIELD as ADAPTER
from gateway.requests.field_types import MAX_ITEMS, MESSAGES, check_messages, check_prompt
from gateway.requests.model_name import decide
from gateway.requests.multipart import MARK
from gateway.requests.outline import WINDOW, Field, Outline
from gateway.requests.parsing import (
    PLAIN,
    PROMPT_FIELDS,
    SCALARS,
    BodyRules,
    completed,
    decode_any,
    decode_raw,
    decode_value,
    names_of,
    num_known_of,
)

VALUE_BYTES, ID_BYTES = 200, 40
"""About what a value takes, decoded and handed to a template; and a token id."""
DENSE_BYTES, MAX_MARKS = 128 << 10, 1 << 15
"""A body of this size and more may hold so many values that they take the event loop 10 ms and more."""
ROOM_BYTES = 50 << 20
MAX_DECODED_VALUES, MAX_DECODED_IDS = 1 << 17, 1 << 21
"""A decoder makes so many in some 20 ms, and the event loop waits meanwhile."""
LONG_BYTES = 64 << 10
"""A field that is longer is stood in for."""
MAX_OTHER_BYTES = 2 << 20
"""Bytes of all short fields together; and of a long one that is decoded here."""
PIECE_BYTES = 1 << 20
SHORT_BYTES = 1 << 10
"""A field that is longer, and not read by name, stays JSON."""
PROMPT = "prompt"
READ = frozenset({*SCALARS, *STATE_FIELDS, *PROMPT_FIELDS, MESSAGES, PROMPT})
"""Fields that routing reads."""
RENDERED = READ | {"input", "system", "instructions", "thinking", "output_config", "mm_processor_kwargs"}
"""Fields that prompts are made of."""

_MARKS = b",[{"
"""A value follows each."""

_decode_role = msgspec.json.Decoder(str).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Message(msgspec.Struct):
    role: str


_decode_message = msgspec.json.Decoder(_Message).decode


def is_large(body: bytes) -> bool:
    """True for a body that is read beside the event loop: a long one, or a shorter one of many values, or a
    form."""
    if len(body) < DENSE_BYTES:
        return False
    return len(body) >= LARGE or body[:2] == MARK or len(body) - len(body.translate(None, _MARKS)) > MAX_MARKS


def parse_large(
    path: str, body: bytes, known: Container[bytes] = frozenset(), rules: BodyRules = PLAIN
) -> InferenceRequest:
    """The request of a large body, as `parse_request` makes it; what is wrong within messages or a prompt is
    left to the engine. Raises InvalidRequest also for a body that holds too much of something."""
    kind, outline = route_of(path).kind, Outline(body)
    crowded, fields = is_crowded(outline, len(body)), outline.last
    core = _core(outline, body)
    top = _top_of(kind, core, fields, body)
    writes_model = decide(top, rules.model, rules.default, is_limited=rules.is_limited)
    messages = _checked(kind, top, fields, body, known, rules.salt, crowded=crowded)
    request = completed(kind, path, core, top, None, messages, rules, writes_model=writes_model)
    request.body = body if request.body == core else expanded(request.body, core, fields, body)
    request.is_large, request.decode = True, decode_large
    request.is_crowded, request.num_ids = crowded, num_ids(kind, fields, body)
    if (prompt := fields.get(PROMPT)) is not None and request.num_prompts > 1:  # else one stands in for one
        request.num_prompts = prompt.num_items
    return request


def decode_large(body: bytes) -> dict[str, Any]:
    """The fields of a body that `parse_large` took, decoded value by value; one that is long and makes no
    prompt is stood in for. Raises InvalidRequest."""
    fields: dict[str, Any] = {}
    for each in Outline(body).fields:
        try:
            fields[each.name] = _decoded(each, body)
        except UNREADABLE as exc:
            raise _unreadable(exc, each, body) from exc
    return fields


def _unreadable(exc: Exception, each: Field, body: bytes) -> InvalidRequest:
    """The error of a field that cannot be decoded. A part of it failed: the place is found from its begin."""
    raw = body[each.start : each.end]
    try:
        decode_any(raw)
    except UNREADABLE as whole:
        exc = whole
    return InvalidRequest(f"the body is not valid JSON: {why_unreadable(exc, raw, each.start)}")


def _decoded(each: Field, body: bytes) -> Any:
    if each.size > LONG_BYTES and each.name not in RENDERED:
        return decode_any(_stand_in(each, body))
    raw = _raw(body, each.start, each.end)
    if each.size <= LONG_BYTES or _first(body, each) != b"[":
        return decode_any(raw)
    if each.num_ids > MAX_ITEMS and each.num_values == 1:
        return _decoded_numbers(body, each.start + 1, each.end - 1)
    return [decode_any(item) for item in _decode_items(raw)]


def _decoded_numbers(body: bytes, start: int, end: int) -> list[Any]:
    """Numbers between commas, decoded a window at a time."""
    numbers: list[Any] = []
    while start < end:
        comma = body.find(b",", min(start + WINDOW, end), end)
        stop = end if comma < 0 else comma
        numbers += decode_any(b"[%b]" % body[start:stop])
        start = stop + 1
    return numbers


def is_crowded(outline: Outline, num_bytes: int) -> bool:
    """True if the values of a body would take more memory than its size allows, or too long to decode."""
    room = ROOM_BYTES + 2 * num_bytes
    takes = outline.num_values * VALUE_BYTES + outline.num_ids * ID_BYTES
    is_slow = outline.num_values > MAX_DECODED_VALUES or outline.num_ids > MAX_DECODED_IDS
    return is_slow or takes > room


def num_ids(kind: RouteKind, fields: Mapping[str, Field], body: bytes) -> int:
    """How many token ids the prompt is a list of; 0 for anything else."""
    prompt = fields.get(PROMPT)
    if kind is not RouteKind.COMPLETION or prompt is None or prompt.num_values != 1:
        return 0
    return prompt.num_ids if _first(body, prompt) == b"[" else 0


def _core(outline: Outline, body: bytes) -> bytes:
    """The body with short fields only. Raises InvalidRequest."""
    parts, size = [], 0
    for each in outline.fields:
        if each.size <= LONG_BYTES:
            value, size = body[each.start : each.end], size + each.size
        elif each.name in SCALARS or each.name == ADAPTER:
            raise InvalidRequest(
                f"'{each.name}' is longer than {LONG_BYTES} bytes; send a shorter one", param=each.name
            )
        else:
            value = _stand_in(each, body)
        parts.append(b"%b:%b" % (each.key, value))
    if size > MAX_OTHER_BYTES:
        raise InvalidRequest(
            f"the body's fields other than its prompt are over {MAX_OTHER_BYTES} bytes; leave some out"
        )
    return b"{%b}" % b",".join(parts)


def _stand_in(each: Field, body: bytes) -> bytes:
    """A value of the same type; a prompt is one, or several, as the long one is."""
    first = _first(body, each)
    if first == b'"':
        return b'""'
    if first == b"{":
        return b"{}"
    if each.name != PROMPT or not each.num_items:
        return b"[0]" if each.has_bare_items else b"[]"
    item = b'""' if each.has_bare_items else b"[0]"
    return b"[%b]" % b",".join([item] * min(each.num_items, 2))


def _first(body: bytes, each: Field) -> bytes:
    return body[each.start : each.start + 1]


def _top_of(kind: RouteKind, core: bytes, fields: Mapping[str, Field], body: bytes) -> dict[str, Any]:
    """The top level decoded as routing reads it, field by field. Raises InvalidRequest."""
    try:
        core.decode()
        top: dict[str, Any] = decode_raw(core)
        if kind is RouteKind.PASS or kind is RouteKind.AGENT:
            return top | {name: decode_any(top[name]) for name in (*SCALARS, *STATE_FIELDS) if name in top}
        decode = decode_value if kind is RouteKind.CHAT else decode_any
        for name, raw in top.items():
            if name in READ or len(memoryview(raw)) <= SHORT_BYTES:
                top[name] = decode(raw)
        if kind is RouteKind.CHAT:
            long = [each for each in fields.values() if each.size > LONG_BYTES]
            top |= {each.name: _setting_of(each, body) for each in long if each.name in PROMPT_FIELDS}
        return top
    except UNREADABLE as exc:
        raise _first_unreadable(exc, fields.values(), body) from exc


def _first_unreadable(exc: Exception, fields: Iterable[Field], body: bytes) -> InvalidRequest:
    """The error of a core that cannot be decoded, with its place in the body."""
    for each in fields:
        if each.size <= LONG_BYTES:
            try:
                body[each.start : each.end].decode()
                decode_any(body[each.start : each.end])
            except UNREADABLE as own:
                return _unreadable(own, each, body)
    return InvalidRequest(f"the body is not valid JSON: {exc}")


def _setting_of(each: Field, body: bytes) -> Any:
    """A long field that the names of a conversation depend on, split as `parse_request` does."""
    raw = _raw(body, each.start, each.end)
    is_split = each.size <= MAX_OTHER_BYTES and each.num_items + each.num_ids <= MAX_ITEMS
    return decode_value(raw) if is_split else raw


def _raw(body: bytes, start: int, end: int) -> msgspec.Raw:
    """Bytes of the body, which are not copied."""
    return msgspec.Raw(memoryview(body)[start:end])


def _checked(
    kind: RouteKind,
    top: dict[str, Any],
    fields: Mapping[str, Field],
    body: bytes,
    known: Container[bytes],
    salt: str | None,
    *,
    crowded: bool,
) -> Messages | None:
    """The messages of a chat that can be looked into. Raises InvalidRequest for what is of a wrong type."""
    if kind is RouteKind.COMPLETION:
        check_prompt(top)
    if kind is not RouteKind.CHAT:
        return None
    found = fields.get(MESSAGES)
    if found is None or _first(body, found) != b"[":
        check_messages(top)
    assert found is not None
    if found.bare_item is not None:
        where = f"messages[{found.bare_item}]"
        raise InvalidRequest(f"'{where}' must be an object with a role", param=where)
    setting_bytes = sum([fields[name].size for name in PROMPT_FIELDS if name in fields])
    if crowded or setting_bytes > 2 * MAX_OTHER_BYTES:
        return None
    raws = [_raw(body, start, end) for start, end in found.items]
    setting, names = names_of(top["model"], top, raws, salt)
    num_known = num_known_of(names, known)
    for number, (start, end) in enumerate(found.items[num_known:], num_known):
        _check_role(number, body[start:end] if end - start <= LONG_BYTES else None, body, start, end)
    return Messages(raws, names, setting, num_known, top, None)


def _check_role(number: int, short: bytes | None, body: bytes, start: int, end: int) -> None:
    """Check that a message has a role, and decode nothing else of it. Raises InvalidRequest."""
    try:
        if short is not None:
            _decode_message(short)
            return
        role = Outline(body[start:end]).last["role"]
        _decode_role(body[start + role.start : start + role.end])
    except (InvalidRequest, KeyError, *UNREADABLE) as exc:
        where = f"messages[{number}]"
        raise InvalidRequest(f"'{where}' must be an object with a role: {exc}", param=where) from exc


def expanded(sent: bytes, core: bytes, fields: Mapping[str, Field], body: bytes) -> bytes:
    """Return `sent`, a body that was made of the core, with the long fields of `body` in their places."""
    if sent.startswith(core[:-1]):  # something was added behind
        end = body.rindex(b"}")
        return joined([memoryview(body)[:end], sent[len(core) - 1 :]])
    parts: list[bytes | memoryview] = []
    for name, raw in decode_raw(sent).items():
        each = fields.get(name)
        is_long = each is not None and each.size > LONG_BYTES
        parts += [b"," if parts else b"{", msgspec.json.encode(name), b":"]
        parts.append(memoryview(body)[each.start : each.end] if each is not None and is_long else bytes(raw))
    return joined([*parts, b"}"])


def joined(parts: Iterable[bytes | memoryview]) -> bytes:
    """The parts joined, copied by short calls."""
    made = BytesIO()
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            made.write(part[at : at + PIECE_BYTES])
    return made.getvalue()
