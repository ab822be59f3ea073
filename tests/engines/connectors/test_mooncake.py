import json
from dataclasses import replace

import pytest

from engines.connectors.mooncake import Mooncake
from gateway.core.kv_events import DecodeError
from tests.support.transfer_pairs import fields_of, pair, prefill_answer

BODY = b'{"model":"m","prompt":"a"}'


def test_both_legs_have_one_transfer_id_and_decode_has_the_prefill_engine() -> None:
    there = fields_of(Mooncake().to_prefill(BODY, pair(0xABC)))["kv_transfer_params"]
    assert there == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-0000000000000abc",
    }
    result = replace(Mooncake().prefill_result(prefill_answer()), cached_tokens=64)
    body = fields_of(Mooncake().to_decode(BODY, pair(0xABC), result))
    assert body == {
        **json.loads(BODY),
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": "xfer-0000000000000abc",
            "remote_bootstrap_addr": "http://10.0.0.1:8998",
            "remote_engine_id": "engine-1",
            "remote_prefill_cached_tokens": 64,
        },
    }
    unknown = fields_of(Mooncake().to_decode(BODY, pair(0xABC), replace(result, cached_tokens=None)))
    assert "remote_prefill_cached_tokens" not in unknown["kv_transfer_params"]


@pytest.mark.parametrize("reason", ["stop", "abort", None])
def test_an_answer_that_did_not_end_by_its_length_is_an_error(reason: str | None) -> None:
    with pytest.raises(DecodeError, match="did not end by its length"):
        Mooncake().prefill_result(prefill_answer(choices=[{"finish_reason": reason}]))
