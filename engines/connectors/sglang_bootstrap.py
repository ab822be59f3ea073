"""SGLang: both workers get the same body at once, with the room in which they meet.

The first token is prefill's, the answer decode's. A worker with a role refuses what has no room, so nothing
is ever asked of one of them alone.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.connectors.leg_bodies import encode, fields_of, read_answer
from gateway.core.kv_connector import Handed, Pair

MAX_ROOM = 1 << 63


class Bootstrap:
    name = "bootstrap"
    is_together = True
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        return self._in_room(body, pair)

    def handed(self, answer: bytes) -> Handed:
        """A stream's answer is events, and tells nothing that is needed."""
        if not answer.startswith(b"{"):
            return Handed(b"")
        told = read_answer(answer)
        return told.handed(b"")

    def to_decode(self, body: bytes, pair: Pair, handed: Handed | None) -> bytes:
        return self._in_room(body, pair)

    def _in_room(self, body: bytes, pair: Pair) -> bytes:
        """A list of prompts meets in a list of rooms."""
        transfer = pair.prefill.transfer
        host, _, port = (transfer.address if transfer and transfer.address else "").rpartition(":")
        rank, size = pair.prefill.dp_rank, pair.prefill.dp_size
        room = pair.number - pair.number % size + rank  # prefill's rank is the room's remainder
        fields = fields_of(body)
        there: dict[str, Any] = {
            "bootstrap_host": host,
            "bootstrap_port": int(port or 0),
            "bootstrap_room": room,
        }
        if num := _num_prompts(fields):
            rooms = [(room + i * size) % MAX_ROOM for i in range(num)]
            there = {name: [value] * num for name, value in there.items()} | {"bootstrap_room": rooms}
        return encode({**fields, **there})


def _num_prompts(fields: Mapping[str, Any]) -> int:
    """0 where it is one, and not in a list."""
    prompt = bytes(fields.get("prompt", b"null"))
    if not prompt.startswith(b"["):
        return 0
    prompts = msgspec.json.decode(prompt)
    return 0 if prompts and isinstance(prompts[0], int) else len(prompts)
