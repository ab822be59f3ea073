"""The model of a request, decided in one place: what was checked is what the worker gets.

    body, form     their own `model`, once; where it is absent, null or empty the query's, which is written in
    query          `model`, once; another one than the body's is refused
    neither        a route without a model in its bodies may do without, where there is one model

For a key that is limited to some models a second `model` is looked for, however it is written; for others a
repeated name means the last one, to us as to the engines' parsers.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import msgspec

from gateway.core.errors import InvalidRequest, ModelMissing
from gateway.core.request import MODEL
from gateway.core.route_table import route_of
from gateway.core.spelling import shortened
from gateway.core.worker import ServedModel

MAX_PARAMETERS: Final = 256
"""Parameters of a query: each takes some microseconds, several times. No engine reads more than a few."""


def asked_in_query(target: bytes) -> str | None:
    """The model that a request's query names; None where it names none. Raises InvalidRequest."""
    found: str | None = None
    for name, value in _query(target):
        if name.casefold() != MODEL:
            continue
        if name != MODEL:
            raise InvalidRequest(f"'{name}' is not a query parameter; write it '{MODEL}'", param=name)
        if found is not None:
            raise InvalidRequest("the query names the model twice; name it once", param=MODEL)
        if not value.isprintable():
            raise InvalidRequest(
                "the model in the query has control characters; send the name of a model", param=MODEL
            )
        found = value
    return found or None


def with_query(target: bytes, model: str) -> bytes:
    """The same target with this model in its query, in place of another one."""
    path, _, query = target.partition(b"?")
    kept = [pair for pair in query.split(b"&") if pair and not _names_model(pair)]
    return path + b"?" + b"&".join([*kept, b"model=" + quote(model, safe="").encode()])


def renamed_query(target: bytes, model: str) -> bytes:
    """The same, where the query has a place for a model."""
    query = target.partition(b"?")[2]
    return with_query(target, model) if any(map(_names_model, query.split(b"&"))) else target


def _names_model(pair: bytes) -> bool:
    return any(name == MODEL for name, _ in parse_qsl(pair.decode("latin-1"), keep_blank_values=True))


def parameters(target: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query. Raises InvalidRequest for very many."""
    query = target.partition(b"?")[2]
    if query.count(b"&") >= MAX_PARAMETERS:
        raise InvalidRequest(f"the query has over {MAX_PARAMETERS} parameters; send fewer")
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def _query(target: bytes) -> list[tuple[str, str]]:
    if b";" in (query := target.partition(b"?")[2]) and MODEL in query.decode("latin-1").casefold():
        raise InvalidRequest("separate the query's parameters by '&', not by ';'", param=MODEL)
    return parameters(target)


def decide(
    fields: dict[str, Any], asked: str | None, default: str | None = None, *, is_limited: bool = False
) -> bool:
    """Put the model into `fields`, a body's top level; returns True if it must be written into the body too.

    `asked` is the query's model, `default` that of a route without one in its bodies; a body without a place
    for a model gets none, unless the key is limited to some. Raises InvalidRequest, or ModelMissing where
    nothing names one."""
    own = fields.get(MODEL)
    if own is not None and type(own) is not str:
        raise InvalidRequest(f"'{MODEL}' must be a string", param=MODEL)
    if own:
        if asked is not None and asked != own:
            raise InvalidRequest(
                f"the body names the model '{own}' and the query '{asked}'; name one of them", param=MODEL
            )
        return False
    model = asked if asked is not None else default
    if model is None:
        raise ModelMissing
    is_there = MODEL in fields
    fields[MODEL] = model
    return bool(model) and (is_there or is_limited or asked is not None)


def check_plain(path: str, model: str, served: Mapping[str, ServedModel]) -> None:
    """Where an engine reads no model it answers from its base, whatever adapter was asked for. Raises
    InvalidRequest."""
    one = served.get(model)
    if one is not None and one.adapter is not None:
        raise InvalidRequest(
            f"the adapter '{model}' cannot be used with {path}, which engines answer from their base model; "
            "use a route with the model in its body",
            param=MODEL,
        )


def default_model(path: str, served: Mapping[str, ServedModel]) -> str:
    """The model of a request that names none: a fleet of one model needs no name where the route has no
    place for one. Raises ModelMissing."""
    if route_of(path).names_model:
        raise ModelMissing
    plain = [name for name, one in served.items() if one.adapter is None and name == one.name]
    if len({served[name].root for name in plain}) > 1:
        raise ModelMissing(f"the query must name the model: {path}?model=NAME, one of {shortened(served)}")
    return plain[0] if plain else ""


class _SeenModel:
    """Any value of the field `model`."""


_Top = msgspec.defstruct("_Top", [(MODEL, _SeenModel, None)])


def check_once(body: bytes) -> None:
    """Check that a body, a JSON object, names its model once at the top level, with whatever escapes. Raises
    InvalidRequest."""
    seen = []

    def see(kind: type, value: object) -> object:
        seen.append(kind)
        return _SeenModel()

    msgspec.json.decode(body, type=_Top, dec_hook=see)
    if len(seen) > 1:
        raise InvalidRequest(f"the body names '{MODEL}' {len(seen)} times; name it once", param=MODEL)
