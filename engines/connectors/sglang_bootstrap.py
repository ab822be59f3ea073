"""SGLang: both workers get the same body at once, with a bootstrap room in which they meet.

The first token is prefill's, the rest decode's. A worker with a role rejects requests without a room, so none
is ever sent to one of them alone.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.connectors.leg_bodies import encode, fields_of, read_answer
from gateway.core.kv_connector import Pair, PrefillResult

MAX_ROOM = 1 << 63


class SglangBootstrap:
    name = "bootstrap"
    is_together = True
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        return self._in_room(body, pair)

    def prefill_result(self, answer: bytes) -> PrefillResult:
        """Usage of prefill's response; a streamed one is events, and has nothing that is needed."""
        if not answer.startswith(b"{"):
            return PrefillResult(b"")
        response = read_answer(answer)
        return response.prefill_result(b"")

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        return self._in_room(body, pair)

    def _in_room(self, body: bytes, pair: Pair) -> bytes:
        """Body with its bootstrap room; a list of prompts gets a list of rooms."""
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
    """Number of prompts in a list; 0 for a single prompt outside a list."""
    prompt = bytes(fields.get("prompt", b"null"))
    if not prompt.startswith(b"["):
        return 0
    prompts = msgspec.json.decode(prompt)
    return 0 if prompts and isinstance(prompts[0], int) else len(prompts)
