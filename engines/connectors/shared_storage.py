"""Connectors of vLLM by which all workers see one store: no word passes between the legs.

Prefill stores what it computes, decode looks for its prompt's blocks there and computes what it does not
find.
"""

from engines.connectors.leg_bodies import encode, prefill_only, read_answer
from gateway.core.kv_connector import Handed, Pair


class SharedStorage:
    name = "shared_storage"
    is_together = False
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        return encode(prefill_only(body))

    def handed(self, answer: bytes) -> Handed:
        told = read_answer(answer)
        return told.handed(b"")

    def to_decode(self, body: bytes, pair: Pair, handed: Handed | None) -> bytes:
        return body
