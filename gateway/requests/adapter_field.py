"""The field `lora_path`, by which SGLang's clients name an adapter beside `model`. Pure.

The gateway reads it and takes it out: the adapter becomes the request's model (`Fleet.adapter_of`), and each
worker gets that by the name that it obeys. Bodies of SGLang's own route have no model: the field stays there.
A list of adapters is refused: with a single prompt it ends SGLang's scheduler (ran, 0.5.23).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.route_table import ADDED, Route

FIELD: Final = "lora_path"
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def adapter_of(route: Route, top: Mapping[str, Any]) -> str | None:
    """Return the adapter that `lora_path` names; None where it names none, or an operator added the route.
    `top` has a body's top level, its values decoded or raw. Raises InvalidRequest."""
    if FIELD not in top or route is ADDED:
        return None
    value = top[FIELD]
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except UNREADABLE:
            value = ()
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(
            f"'{FIELD}' must be a string; send a request for each adapter, with its name as 'model'",
            param=FIELD,
        )
    return value or None


def without_adapter(route: Route, body: bytes) -> bytes:
    """Return the body without `lora_path` on routes where `model` names the adapter instead."""
    if not route.names_model:
        return body
    return msgspec.json.encode({name: raw for name, raw in _decode_raw(body).items() if name != FIELD})
