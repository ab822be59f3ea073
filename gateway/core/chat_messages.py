"""A chat's messages as they came, not yet decoded."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.core.body_text import why_unreadable
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.core.json_values import decode


class Messages(msgspec.Struct, frozen=True):
    """A chat's messages as they came. `names[i]` names everything that the prompt's text up to message
    `i` depends on, but for the day; `setting` all of that without messages. `num_known` leading ones
    were in a request before, and have passed its checks. `top` is the body with its scalars decoded,
    `new` the messages that are not known; None where they are large, and decoded when they are asked for.
    """

    raws: Sequence[msgspec.Raw]
    names: Sequence[bytes]
    setting: bytes
    num_known: int
    top: dict[str, Any]
    new: Sequence[Any] | None

    def __repr__(self) -> str:
        return f"Messages({len(self.raws)}, {self.num_known} known)"

    def decode(self, first: int) -> Sequence[Any]:
        """The messages from `first` on. Raises InvalidRequest for broken JSON within a large one: all others
        have passed the checks."""
        if first == self.num_known and self.new is not None:
            return self.new
        found = []
        for number, raw in enumerate(self.raws[first:], first):
            try:
                found.append(decode(raw))
            except UNREADABLE as exc:
                why = f"messages[{number}]: {why_unreadable(exc, bytes(raw))} of the message"
                raise InvalidRequest(f"a message is not valid JSON: {why}", param="messages") from exc
        return found
