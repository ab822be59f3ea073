from gateway import request as make_request
from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.decision import Prompt, Query
from gateway.core.fleet import HashGroup
from gateway.routing.query import prefix_of, query_of

GROUP, LARGE = HashGroup("root", "lora", 16), HashGroup("root", "lora", 512)


def hashes(*numbers: int) -> list[BlockHash]:
    return [BlockHash(number) for number in numbers]


def test_a_query_has_session_adapter_and_prefix() -> None:
    request = make_request("/v1/completions", {"model": "m", "prompt": [1] * 40, "user": "u"})
    prompt = Prompt((tokens_of([1] * 40),), "ids")
    query = query_of(request, prompt, GROUP, {GROUP: [hashes(7, 8)]})
    assert query == Query("m", 40, "u", adapter="lora", prefix=8)
    assert query_of(request, Prompt(), HashGroup("root", None, 16), {}) == Query("m", 0, "u")
    assert query_of(request, prompt, GROUP, None) == Query("m", 40, "u", adapter="lora")


def test_a_prefix_is_256_tokens_or_all_of_a_short_prompt() -> None:
    assert prefix_of({GROUP: [hashes(*range(100))]}) == prefix_of({GROUP: [hashes(*range(17))]}) == 15
    assert prefix_of({GROUP: [hashes(1, 2, 3)]}) == 3
    assert prefix_of({LARGE: [hashes(1, 2)]}) == 1
    assert prefix_of({GROUP: [[], hashes(5)]}) == 5
    assert prefix_of({GROUP: [[]]}) is None
