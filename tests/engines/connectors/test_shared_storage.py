from engines.connectors.shared_storage import SharedStorage
from tests.engines.test_handoffs import answer, of, pair

BODY = b'{"model":"m","prompt":"a","stream":true}'


def test_legs_have_no_parameters() -> None:
    asked = of(SharedStorage().to_prefill(BODY, pair()))
    assert asked == {"model": "m", "prompt": "a", "stream": False, "max_tokens": 1}
    handed = SharedStorage().handed(answer())
    assert (handed.num_prompt_tokens, handed.cached_tokens) == (100, 32)
    assert SharedStorage().to_decode(BODY, pair(), handed) == BODY
