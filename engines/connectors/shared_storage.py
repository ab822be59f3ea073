"""Connectors of vLLM with a store that all workers share: nothing is passed between the legs.

Prefill stores its blocks, decode looks for its prompt's blocks there and computes the missing ones.
"""

from engines.connectors.leg_bodies import encode, prefill_only, read_answer
from gateway.core.kv_connector import Pair, PrefillResult


class SharedStorage:
    name = "shared_storage"
    is_together = False
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        return encode(prefill_only(body))

    def prefill_result(self, answer: bytes) -> PrefillResult:
        response = read_answer(answer)
        return response.prefill_result(b"")

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        return body
