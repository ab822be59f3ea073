import json

import pytest

from engines.connectors.nixl import Nixl
from gateway.core.kv_events import DecodeError
from tests.support.transfer_pairs import fields_of, pair, prefill_answer

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[102, 103]],
    "remote_engine_id": "af964b75",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
BODY = b'{"model": "m", "prompt": [1, 2, 3], "max_tokens": 7}'


def test_a_prefill_leg_keeps_its_blocks() -> None:
    asked = fields_of(Nixl().to_prefill(BODY, pair()))
    assert asked["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert (asked["max_tokens"], asked["prompt"]) == (1, [1, 2, 3])
    assert "max_completion_tokens" not in asked


def test_a_decode_leg_has_the_parameters_of_prefill_unchanged() -> None:
    reported = {**PARAMS, "remote_prefill_cached_tokens": 16, "unknown": [1, {"a": None}]}
    result = Nixl().prefill_result(prefill_answer(kv_transfer_params=reported))
    assert (result.num_prompt_tokens, result.cached_tokens) == (100, 32)
    body = fields_of(Nixl().to_decode(BODY, pair(), result))
    assert body == {**json.loads(BODY), "kv_transfer_params": reported}


def test_cached_tokens_of_prefill_are_added_where_it_does_not_report_them() -> None:
    result = Nixl().prefill_result(prefill_answer(kv_transfer_params=PARAMS))
    assert fields_of(result.params) == {**PARAMS, "remote_prefill_cached_tokens": 32}


@pytest.mark.parametrize("name", ["remote_block_ids", "remote_engine_id", "remote_host", "remote_port"])
def test_incomplete_parameters_are_not_forwarded(name: str) -> None:
    """The decode worker would wait for ever, and die when its client leaves."""
    for params in ({**PARAMS, name: None}, {key: v for key, v in PARAMS.items() if key != name}):
        with pytest.raises(DecodeError, match=name):
            Nixl().prefill_result(prefill_answer(kv_transfer_params=params))


@pytest.mark.parametrize(
    "body",
    [prefill_answer(), prefill_answer(kv_transfer_params=None), prefill_answer(kv_transfer_params=[1])],
)
def test_an_answer_without_parameters_is_rejected(body: bytes) -> None:
    with pytest.raises(DecodeError, match="without kv_transfer_params"):
        Nixl().prefill_result(body)
