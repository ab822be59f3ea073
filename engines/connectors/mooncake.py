"""vLLM's MooncakeConnector: both legs carry a transfer id of kvgate's, and decode pulls from the prefill
worker.

Decode needs the address of prefill's bootstrap server, and its engine id there, which is new with each start.
Prefill's response has neither; it must have ended by its length, or its blocks are gone. Decode counts all
fetched tokens as cached, unless the request carries the number that the prefill worker had cached.
"""

from collections.abc import Mapping

import msgspec

from engines.connectors.leg_bodies import encode, prefill_only, read_answer, with_field
from engines.wire import parse
from gateway.core.kv_connector import BootstrapServer, Pair, PrefillResult
from gateway.core.kv_events import DecodeError


class _Engine(msgspec.Struct):
    engine_id: str


_engines = msgspec.json.Decoder(dict[int, _Engine]).decode
_ENDS = ("stop", "stop_token_ids")
_LENGTH = b'"length"'


def engine_ids(body: bytes) -> Mapping[int, str]:
    """Engine ids by rank, as the bootstrap server reports them. Raises DecodeError."""
    engines = parse("mooncake's bootstrap server", _engines, body)
    return {rank: engine.engine_id for rank, engine in engines.items()}


class Mooncake:
    name = "mooncake"
    is_together = False
    bootstrap = BootstrapServer(8998, engine_ids)

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        asked = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": _transfer_id(pair)}
        fields = {name: raw for name, raw in prefill_only(body).items() if name not in _ENDS}
        return encode({**fields, "ignore_eos": True, "kv_transfer_params": asked})

    def prefill_result(self, answer: bytes) -> PrefillResult:
        response = read_answer(answer)
        ended = [bytes(choice.get("finish_reason", msgspec.Raw(b"null"))) for choice in response.choices]
        if ended != [_LENGTH]:
            raise DecodeError("the prefill worker's answer did not end by its length: its blocks are gone")
        return response.prefill_result(b"")

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        transfer = pair.prefill.transfer
        assert transfer is not None
        params: dict[str, object] = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _transfer_id(pair),
            "remote_bootstrap_addr": f"http://{transfer.address}",
            "remote_engine_id": transfer.engine_id,
        }
        if result is not None and result.cached_tokens is not None:
            params["remote_prefill_cached_tokens"] = result.cached_tokens
        return with_field(body, "kv_transfer_params", params)


def _transfer_id(pair: Pair) -> str:
    return f"xfer-{pair.number:016x}"
