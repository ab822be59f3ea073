"""vLLM's NixlConnector: prefill responds with the location of its blocks, and decode fetches them.

The prefill worker keeps the blocks until they were fetched, or their lease ends. They can be fetched once.
Decode computes the first token again. It counts fetched tokens as not cached, unless the request carries the
number that the prefill worker had cached.
"""

from dataclasses import replace

import msgspec

from engines.connectors.leg_bodies import encode, fields_of, prefill_only, read_answer, with_field
from gateway.core.kv_connector import Pair, PrefillResult
from gateway.core.kv_events import DecodeError

_ASK = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_NEEDED = ("remote_block_ids", "remote_engine_id", "remote_host", "remote_port")
"""Required parameters: without one of them the decode worker waits for ever, and dies when its client
leaves."""
_CACHED = b'"remote_prefill_cached_tokens"'


class Nixl:
    name = "nixl"
    is_together = False
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        return encode({**prefill_only(body), "kv_transfer_params": _ASK})

    def prefill_result(self, answer: bytes) -> PrefillResult:
        response = read_answer(answer)
        params = bytes(response.kv_transfer_params)
        if not params.startswith(b"{"):
            raise DecodeError("the prefill worker answered without kv_transfer_params")
        fields = fields_of(params)
        if missing := [name for name in _NEEDED if bytes(fields.get(name, b"null")) == b"null"]:
            raise DecodeError(f"kv_transfer_params of the prefill worker have no {', '.join(missing)}")
        result = response.prefill_result(params)
        if result.cached_tokens is not None and _CACHED not in params:
            params = with_field(params, "remote_prefill_cached_tokens", result.cached_tokens)
        return replace(result, params=params)

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        assert result is not None, "decode follows prefill"
        return with_field(body, "kv_transfer_params", result.params)
