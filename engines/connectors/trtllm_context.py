"""TensorRT-LLM: prefill responds with its first token and the location of the KV cache, decode continues from
there.

Decode takes prefill's token ids in place of the prompt. Where prefill's response is complete with its first
token there is nothing to continue, and the decode worker computes all of it.
"""

from typing import Any

import msgspec

from engines.connectors.leg_bodies import encode, fields_of, read_answer
from engines.wire import parse
from gateway.core.kv_connector import Pair, PrefillResult
from gateway.core.kv_events import DecodeError

_MORE = (b'"length"', b'"not_finished"')


class _ContextAnswer(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


class _DisaggregatedParams(msgspec.Struct):
    params: dict[str, Any]
    tokens: msgspec.Raw


_answer = msgspec.json.Decoder(_ContextAnswer).decode
_decode_params = msgspec.json.Decoder(_DisaggregatedParams).decode
_params = msgspec.json.Decoder(dict[str, Any]).decode


class TrtLlmContext:
    name = "context"
    is_together = False
    bootstrap = None

    def to_prefill(self, body: bytes, pair: Pair) -> bytes:
        fields = fields_of(body)
        fields.pop("stream_options", None)
        asked = {"request_type": "context_only", "disagg_request_id": pair.number}
        return encode({**fields, "stream": False, "disaggregated_params": asked})

    def prefill_result(self, answer: bytes) -> PrefillResult:
        response = read_answer(answer)
        tokens = parse("the prefill worker's answer", _answer, answer).prompt_token_ids
        choice = response.choices[0] if len(response.choices) == 1 else {}
        data = bytes(choice.get("disaggregated_params", msgspec.Raw(b"null")))
        if bytes(choice.get("finish_reason", msgspec.Raw(b"null"))) not in _MORE:
            raise DecodeError("the prefill worker's answer is complete: nothing is left to decode")
        params = parse("disaggregated_params", _params, data)
        if params.get("ctx_request_id") is None:
            raise DecodeError("the prefill worker answered without ctx_request_id")
        return response.prefill_result(encode(_DisaggregatedParams(params, tokens)))

    def to_decode(self, body: bytes, pair: Pair, result: PrefillResult | None) -> bytes:
        assert result is not None, "decode follows prefill"
        handed_over = _decode_params(result.params)
        fields = {
            **fields_of(body),
            "disaggregated_params": {**handed_over.params, "request_type": "generation_only"},
        }
        if bytes(handed_over.tokens) != b"null":
            fields["prompt" if "prompt" in fields else "prompt_token_ids"] = handed_over.tokens
        return encode(fields)
