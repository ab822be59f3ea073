from engines.connectors.shared_storage import SharedStorage
from tests.support.transfer_pairs import fields_of, pair, prefill_answer

BODY = b'{"model":"m","prompt":"a","stream":true}'


def test_legs_have_no_parameters() -> None:
    asked = fields_of(SharedStorage().to_prefill(BODY, pair()))
    assert asked == {"model": "m", "prompt": "a", "stream": False, "max_tokens": 1}
    result = SharedStorage().prefill_result(prefill_answer())
    assert (result.num_prompt_tokens, result.cached_tokens) == (100, 32)
    assert SharedStorage().to_decode(BODY, pair(), result) == BODY
