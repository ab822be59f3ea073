import json

import pytest

from engines.connectors.sglang_bootstrap import SglangBootstrap
from tests.support.transfer_pairs import fields_of, pair, prefill_answer

BODY = b'{"model":"m","prompt":"a","n":2,"stream":true}'


def test_both_legs_have_the_same_body_with_a_common_room() -> None:
    here = SglangBootstrap().to_prefill(BODY, pair(77))
    assert here == SglangBootstrap().to_decode(BODY, pair(77), None)
    room = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 77}
    assert fields_of(here) == {**json.loads(BODY), **room}


@pytest.mark.parametrize("number", [0, 5, 2**63 - 1])
def test_the_room_belongs_to_the_rank_of_prefill(number: int) -> None:
    room = fields_of(SglangBootstrap().to_prefill(BODY, pair(number, dp_rank=3, dp_size=8)))["bootstrap_room"]
    assert (room % 8, room // 8) == (3, number // 8)
    assert 0 <= room < 2**63


def test_several_prompts_have_several_rooms() -> None:
    for prompt in (["a", "b"], [[1], [2]]):
        fields = fields_of(SglangBootstrap().to_prefill(json.dumps({"prompt": prompt}).encode(), pair(77)))
        assert fields["bootstrap_room"] == [77, 78]
        assert (fields["bootstrap_host"], fields["bootstrap_port"]) == (["10.0.0.1"] * 2, [8998] * 2)
    assert fields_of(SglangBootstrap().to_prefill(b'{"prompt": [1, 2]}', pair(77)))["bootstrap_room"] == 77


def test_a_streamed_answer_has_no_usage() -> None:
    assert SglangBootstrap().prefill_result(b"data: {}\n\n").num_prompt_tokens is None
    assert SglangBootstrap().prefill_result(prefill_answer()).cached_tokens == 32
