"""A completion's token ids apart from its body: as JSON they take longer to write and read than a decision.

ids ─► body with a stand-in ─ renamed, salted, … ─► `whole` has the ids, where the body is sent
"""

from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.request import decode_object

PROMPT: Final = "prompt"


class TokenPrompt:
    """Prompt of a body that has a stand-in for it: another one for other ids, as bodies are compared."""

    __slots__ = ("ids", "_stand_in")

    def __init__(self, ids: list[int], packed: bytes) -> None:
        """Create a prompt; `packed` are the same ids as bytes, in any form."""
        self.ids = ids
        self._stand_in = b'"prompt":[%d]' % xxh3_64_intdigest(packed)

    def __repr__(self) -> str:
        return f"TokenPrompt({len(self.ids)} ids)"

    def body(self, model: str) -> bytes:
        """Return the body of a completion, with the stand-in; it names no model where `model` is empty."""
        if not model:
            return b"{%b}" % self._stand_in
        return b'{%b,"model":%b}' % (self._stand_in, msgspec.json.encode(model))

    def whole(self, body: bytes) -> bytes:
        """Return a body with the ids in place of the stand-in."""
        return body.replace(self._stand_in, b'"prompt":' + msgspec.json.encode(self.ids), 1)

    def fields(self, body: bytes) -> dict[str, Any]:
        """Return the fields of the whole body of one with the stand-in."""
        fields = decode_object(body)
        fields[PROMPT] = self.ids
        return fields
