"""A body for a worker that knows the model by another name than the client."""

import msgspec

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def renamed(body: bytes, model: str) -> bytes:
    """Every other field as it came. The body has been parsed before, as an object with a model."""
    return msgspec.json.encode({**_decode(body), "model": msgspec.Raw(msgspec.json.encode(model))})
