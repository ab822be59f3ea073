"""JSON values of clients' bodies, with the numbers that no float holds.

JSON has no largest number, and engines read `1e400` as an infinity, as Python does, and answer. The decoder
refuses it, so a body that has one is decoded again, slower. `encode` writes such a number again: an infinity
alone would become null.
"""

from math import isinf
from typing import Any

import msgspec


class Boundless(float):
    """Infinity that stands for a number beyond the range of floats."""

    __slots__ = ()


def _number(text: str) -> float:
    value = float(text)
    return Boundless(value) if isinf(value) else value


def _written(value: object) -> msgspec.Raw:
    if isinstance(value, Boundless):
        return msgspec.Raw(b"1e999" if value > 0 else b"-1e999")
    raise NotImplementedError(f"{type(value).__name__} is not a JSON value")


_decode = msgspec.json.Decoder().decode
_decode_any_number = msgspec.json.Decoder(float_hook=_number).decode
encode = msgspec.json.Encoder(enc_hook=_written).encode
encode_sorted = msgspec.json.Encoder(enc_hook=_written, order="sorted").encode


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Decode a value. Raises one of UNREADABLE, also for an integer of thousands of digits, which engines
    refuse too."""
    try:
        return _decode(raw)
    except msgspec.ValidationError:  # the only one without a type: a number out of range
        return _decode_any_number(raw)


def json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
