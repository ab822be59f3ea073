import json
from typing import Any

import pytest

from engines.connectors.trtllm_context import TrtLlmContext
from gateway.core.kv_events import DecodeError
from tests.support.transfer_pairs import fields_of, pair, prefill_answer

BODY = b'{"model":"m","prompt":"a","stream":true,"stream_options":{},"max_tokens":9}'
PARAMS = {
    "request_type": "context_only",
    "ctx_request_id": 7,
    "first_gen_tokens": [42],
    "encoded_opaque_state": "x",
}


def reported(params: Any = PARAMS, reason: str | None = "length", **fields: Any) -> bytes:
    return prefill_answer(choices=[{"finish_reason": reason, "disaggregated_params": params}], **fields)


def test_decode_continues_with_the_first_token_of_prefill() -> None:
    asked = fields_of(TrtLlmContext().to_prefill(BODY, pair(9)))
    assert asked["disaggregated_params"] == {"request_type": "context_only", "disagg_request_id": 9}
    assert (asked["stream"], asked["max_tokens"]) == (False, 9)
    result = TrtLlmContext().prefill_result(reported(prompt_token_ids=[1, 2, 3]))
    body = fields_of(TrtLlmContext().to_decode(BODY, pair(9), result))
    expected = {"disaggregated_params": {**PARAMS, "request_type": "generation_only"}, "prompt": [1, 2, 3]}
    assert body == {**json.loads(BODY), **expected}


def test_a_chat_has_tokens_beside_its_messages() -> None:
    body = fields_of(
        TrtLlmContext().to_decode(
            b'{"messages":[]}', pair(), TrtLlmContext().prefill_result(reported(prompt_token_ids=[1]))
        )
    )
    assert (body["messages"], body["prompt_token_ids"]) == ([], [1])
    assert "prompt_token_ids" not in fields_of(
        TrtLlmContext().to_decode(b'{"messages":[]}', pair(), TrtLlmContext().prefill_result(reported()))
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (reported(reason="stop"), "nothing is left to decode"),
        (reported(reason=None), "nothing is left to decode"),
        (prefill_answer(choices=[]), "nothing is left to decode"),
        (reported(params=None), "disaggregated_params"),
        (reported(params={**PARAMS, "ctx_request_id": None}), "without ctx_request_id"),
    ],
)
def test_an_answer_without_a_continuation_is_rejected(body: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        TrtLlmContext().prefill_result(body)
