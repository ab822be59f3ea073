"""Fields by which a client could steer an engine: taken out of a body, checked against its key, or refused.

What each field does is judged in `field_judgement.py`. A body without such fields costs one look at its
names.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import Forbidden, InvalidRequest
from gateway.core.json_values import decode, encode
from gateway.requests.field_judgement import (
    BOOTSTRAP,
    GUARDED,
    JUDGED,
    PARAMETERS,
    UNREMARKABLE,
    XARGS,
    Judgement,
    judgement_of,
)

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def unsteered(
    top: Mapping[str, Any], body: bytes, *, keeps_transfer: bool, models: Container[str] | None
) -> bytes:
    """The body as it goes on; `top` has the names of its top level, and `vllm_xargs` decoded at least by its
    names. `models` are those of the client's key, None where it may use all. Raises InvalidRequest or
    Forbidden."""
    if UNREMARKABLE.issuperset(top):
        return body
    if models is not None and PARAMETERS in top:
        body = _checked_parameters(body, models)
    xargs = top.get(XARGS)
    inner: Mapping[str, Any] = xargs if isinstance(xargs, dict) else {}
    check_letters(top)
    check_letters(inner)
    in_xargs = [name for name in inner if is_removed(name, keeps_transfer)]
    adapters = [] if models is None else [name for name in (*top, *inner) if is_adapter(name)]
    if not in_xargs and not adapters and not any([is_removed(name, keeps_transfer) for name in top]):
        return body
    kept = {name: raw for name, raw in _decode_raw(body).items() if not is_removed(name, keeps_transfer)}
    values = dict(kept)
    if inner:
        values |= (within := _decode_raw(kept[XARGS]))
        left = {name: raw for name, raw in within.items() if not is_removed(name, keeps_transfer)}
        kept[XARGS] = msgspec.Raw(msgspec.json.encode(left))
    for name in adapters:
        check_adapter(name, value_of(name, values[name]), models or ())
    return msgspec.json.encode(kept)  # each name once: what was checked is what goes on


def _checked_parameters(body: bytes, models: Container[str]) -> bytes:
    """The body with each name once: what was checked is what goes on. Raises Forbidden and InvalidRequest."""
    fields = _decode_raw(body)
    parameters = value_of(PARAMETERS, fields[PARAMETERS])
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        if is_adapter(name):
            check_adapter(name, value, models)
    return encode({**fields, PARAMETERS: parameters})


def value_of(name: str, raw: msgspec.Raw) -> object:
    """Decode a field that was only scanned so far. Raises InvalidRequest, as for a number of thousands of
    digits."""
    try:
        return decode(raw)
    except UNREADABLE as exc:
        raise InvalidRequest(f"'{name}' cannot be read: {exc}", param=name) from exc


def is_removed(name: str, keeps_transfer: bool) -> bool:
    """True if the field is removed from requests; `keeps_transfer`: clients may split requests themselves."""
    judgement = judgement_of(name)
    if judgement is Judgement.REMOVED or judgement is Judgement.NAME:
        return True
    return judgement is Judgement.TRANSFER and not keeps_transfer


def is_adapter(name: str) -> bool:
    return judgement_of(name) is Judgement.ADAPTER


def has_transfer(names: Iterable[str]) -> bool:
    """True if a field shows that the client splits the request itself."""
    return any([judgement_of(name) is Judgement.TRANSFER for name in names])


def check_letters(names: Iterable[str]) -> None:
    """Parsers that ignore case read another field than we: such names are refused. Raises InvalidRequest."""
    for name in names:
        if name in JUDGED:
            continue
        folded = name.casefold()
        meant = GUARDED.get(folded)
        if meant is None and folded.startswith(BOOTSTRAP) and not name.startswith(BOOTSTRAP):
            meant = folded
        if meant is not None:
            raise InvalidRequest(f"'{name}' is not a field; write it '{meant}'", param=name)


def check_adapter(name: str, value: object, models: Container[str]) -> None:
    """Check that the key may use all of `value`, a name or a list of names. Raises Forbidden."""
    for each in value if isinstance(value, list) and value else [value]:
        if value is not None and (not isinstance(each, str) or each not in models):
            raise Forbidden(
                f"this key may not use the adapter in '{name}'; name one of the key's models as 'model'",
                code="model_not_allowed",
                param=name,
            )


def behind(body: bytes, given: object, priority: int) -> bytes:
    """The body with a priority that is not ahead of the admitted one; lower goes first.

    `given` is the body's own. Engines accept numbers of any type."""
    is_behind = False
    if type(given) is int:
        is_behind = given >= priority
    elif type(given) is float:
        is_behind = given >= priority or not given.is_integer()
    if is_behind:
        return body
    return msgspec.json.encode({**_decode_raw(body), "priority": msgspec.Raw(b"%d" % priority)})
