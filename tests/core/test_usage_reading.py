"""Token counts that a worker reports: accepted, rejected, and their limits."""

from typing import Any

import msgspec
import pytest

from gateway.core.decision import Decision, PrefillChoice
from gateway.core.request import InferenceRequest
from gateway.core.usage import MAX_ANSWERS, MAX_LEN, MAX_TURNS, WIDEST, RefusedUsage, Usage, UsageLimit
from gateway.core.usage_reading import limit_of, of_own_cache, read_beginning, read_usage
from gateway.core.value import replace
from gateway.core.worker import ServedModel
from gateway.requests.large_body import parse_large
from gateway.requests.parsing import parse_request
from tests.support.fakes import decision, worker

LIMIT = UsageLimit(1000, 500)


def read(usage: bytes, limit: UsageLimit = LIMIT) -> Usage | RefusedUsage | None:
    found = read_usage(b'{"id":"x","usage":' + usage + b"}", limit)
    assert read_usage(b'{"response":{"usage":' + usage + b"}}", limit) == found
    return found


def counts(usage: bytes, limit: UsageLimit = LIMIT) -> tuple[int, int | None, int | None]:
    found = read(usage, limit)
    assert isinstance(found, Usage)
    return found.prompt_tokens, found.completion_tokens, found.cached_tokens


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (b"{}", (0, None, None)),
        (b'{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}', (7, 2, None)),
        (b'{"prompt_tokens":7,"completion_tokens":null,"prompt_tokens_details":null}', (7, None, None)),
        (b'{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":null}}', (7, None, None)),
        (b'{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":3}}', (7, None, 0)),
        (b'{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":7}}', (7, None, 7)),
        (b'{"prompt_tokens":1000,"completion_tokens":500}', (1000, 500, None)),
        (b'{"prompt_tokens":null,"completion_tokens":2}', (0, 2, None)),
        (b'{"input_tokens":3,"output_tokens":2,"cache_read_input_tokens":16}', (19, 2, 16)),
        (b'{"input_tokens":3,"cache_creation_input_tokens":5}', (8, None, None)),
        (b'{"input_tokens":19,"output_tokens":2,"input_tokens_details":{"cached_tokens":16}}', (19, 2, 16)),
        (b'{"output_tokens":2}', (0, 2, None)),
        (b'{"type":"duration","seconds":3.5}', (0, None, None)),
    ],
)
def test_valid_usage_is_accepted(usage: bytes, expected: tuple[int, int | None, int | None]) -> None:
    assert counts(usage) == expected


NO_COUNTS = [b"true", b"false", b"3.0", b"3.5", b"1e3", b"1e400", b'"12"', b"[]", b"{}", b"9" * 5000]
TOO_MANY = [b"-1", b"-9", b"1001", b"2147483648", b"9223372036854775808", b"9" * 400, b"-" + b"9" * 400]
FIELDS = [
    b'{"prompt_tokens":%b}',
    b'{"prompt_tokens":5,"completion_tokens":%b}',
    b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":%b}}',
    b'{"input_tokens":%b}',
    b'{"input_tokens":5,"output_tokens":%b}',
    b'{"input_tokens":5,"cache_read_input_tokens":%b}',
    b'{"input_tokens":5,"cache_creation_input_tokens":%b}',
    b'{"input_tokens":5,"input_tokens_details":{"cached_tokens":%b}}',
]


@pytest.mark.parametrize("value", [*NO_COUNTS, *TOO_MANY], ids=lambda value: value[:12].decode())
@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.decode())
def test_an_impossible_count_is_rejected(field: bytes, value: bytes) -> None:
    found = read(field % value)
    assert isinstance(found, RefusedUsage)
    assert found.why and len(found.why) < 200


@pytest.mark.parametrize(
    ("usage", "why"),
    [
        (b'{"prompt_tokens":5,"completion_tokens":-9}', "Expected `int` >= 0 - at `$.completion_tokens`"),
        (b'{"prompt_tokens":1001}', "1001 prompt tokens where 1000 are possible"),
        (b'{"prompt_tokens":1,"completion_tokens":501}', "501 generated tokens where 500 are possible"),
        (
            b'{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":6}}',
            "6 cached tokens of a prompt of 5",
        ),
        (b'{"prompt_tokens":' + b"9" * 400 + b"}", "over 10^18 prompt tokens where 1000 are possible"),
        (b'{"prompt_tokens":"5"}', "Expected `int | null`, got `str` - at `$.prompt_tokens`"),
        (b"[]", "Expected `object | null`, got `array`"),
        (b"7", "Expected `object | null`, got `int`"),
        # No part hides in the sum.
        (
            b'{"input_tokens":900,"cache_creation_input_tokens":-800}',
            "Expected `int` >= 0 - at `$.cache_creation_input_tokens`",
        ),
    ],
)
def test_a_rejection_has_its_reason(usage: bytes, why: str) -> None:
    assert read(usage) == RefusedUsage(why)


@pytest.mark.parametrize(
    "body",
    [
        b'{"meta_info":null}',
        b'{"usage":null}',
        b"{}",
        b'{"response":null}',
        b'{"response":{}}',
        b'"usage"',
        b'{"response":"a"}',
    ],
)
def test_missing_usage_is_none(body: bytes) -> None:
    assert read_usage(body) is None


def test_copies_of_a_cached_prompt_are_counted_as_sglang_does() -> None:
    usage = b'{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":198}}'
    assert counts(usage, UsageLimit(1000, 1000, num_answers=2)) == (100, None, 100)
    assert isinstance(read(usage), RefusedUsage)
    usage = usage.replace(b"198", b"201")
    assert isinstance(read(usage, UsageLimit(1000, 1000, num_answers=2)), RefusedUsage)


# limits ------------------------------------------------------------------------------------------


def chosen(*served: ServedModel) -> Decision:
    return replace(decision(), worker=worker("w:1", *served))


BASE = ServedModel("m", "m", None, 8192)


def asked(path: str = "/v1/completions", **fields: Any) -> InferenceRequest:
    return parse_request(path, msgspec.json.encode({"model": "m", "prompt": "a", **fields}))


CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(), UsageLimit(8192, 8192)),
        (asked(prompt=[1, 2, 3]), UsageLimit(8192, 8192)),
        (asked(prompt=["a"]), UsageLimit(8192, 8192)),
        (asked(prompt=["a", "b", "c"]), UsageLimit(3 * 8192, 3 * 8192)),
        (asked(prompt=[[1], [2]], n=4), UsageLimit(2 * 8192, 8 * 8192, 4)),
        (asked(n=2, best_of=5), UsageLimit(8192, 5 * 8192, 5)),
        (asked(n=10**30), UsageLimit(8192, MAX_ANSWERS * 8192, MAX_ANSWERS)),
        (asked(n=-1), UsageLimit(8192, 8192)),
        (asked(n=True), UsageLimit(8192, 8192)),
        (asked("/v1/chat/completions", messages=CHAT), UsageLimit(8192, 8192)),
        (asked("/v1/chat/completions", messages=CHAT, n=3), UsageLimit(8192, 3 * 8192, 3)),
        (asked("/v1/messages", messages=CHAT), UsageLimit(8192, 8192)),
        (asked("/v1/responses", input="a"), UsageLimit(MAX_TURNS * 8192, MAX_TURNS * 8192)),
        (asked("/v1/embeddings", input=["a"]), UsageLimit(MAX_TURNS * 8192, MAX_TURNS * 8192)),
    ],
)
def test_limits_follow_from_the_request(request_: InferenceRequest, expected: UsageLimit) -> None:
    assert limit_of(request_, chosen(BASE)) == expected


@pytest.mark.parametrize(
    ("served", "longest"),
    [
        ((BASE,), 8192),
        ((ServedModel("m", "m"),), MAX_LEN),
        ((ServedModel("a", "a", None, 100), BASE), 8192),
        ((BASE, ServedModel("ad", "m", "ad", 10**9, "m")), 8192),
        ((ServedModel("ad", "m", "ad", 10**9, "m"),), MAX_LEN),
    ],
)
def test_limits_follow_from_the_models_of_the_worker(served: tuple[ServedModel, ...], longest: int) -> None:
    assert limit_of(asked(), chosen(*served)).prompt == longest


def test_limits_of_other_routes_follow_from_the_bytes_of_the_body() -> None:
    request = asked("/v1/embeddings", input=["a"] * 500)
    assert limit_of(request, chosen(BASE)).prompt == len(request.body) * 8192


def test_a_request_without_a_decision_has_the_widest_limit() -> None:
    assert limit_of(asked(), None) is WIDEST


def test_a_large_body_is_not_decoded_for_its_limit() -> None:
    body = b'{"model":"m","prompt":[' + b'"aaaaaaaaaaaaaaaaaaaaaaa",' * 60_000 + b'"a"]}'
    request = parse_large("/v1/completions", body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(request), "fields", property(lambda self: pytest.fail("it was decoded")))
        assert limit_of(request, chosen(BASE)).prompt == 60_001 * 8192


def test_a_prompt_of_another_worker_says_nothing_of_the_cache() -> None:
    """NIXL reports what prefill had cached, Mooncake what it sent."""
    made = decision()
    usage = read_usage(b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}')
    assert isinstance(usage, Usage) and of_own_cache(usage, made) is usage
    split = replace(made, split=PrefillChoice("transfer", made.candidates[0]))
    assert of_own_cache(usage, split) == Usage(5)


@pytest.mark.parametrize(
    ("body", "cached"),
    [
        (b'{"usage":{"prompt_tokens":50},"timings":{"cache_n":48,"prompt_n":2}}', 48),
        (b'{"usage":{"prompt_tokens":50},"timings":{"cache_n":51}}', None),  # more than the prompt
        (b'{"usage":{"prompt_tokens":50},"timings":{"cache_n":-1}}', None),
        (b'{"usage":{"prompt_tokens":50},"timings":{"cache_n":"48"}}', None),
        (b'{"usage":{"prompt_tokens":50},"timings":[]}', None),
        (b'{"usage":{"prompt_tokens":50},"timings":null}', None),
        (
            b'{"usage":{"prompt_tokens":50,"prompt_tokens_details":{"cached_tokens":7}},"timings":{"cache_n":9}}',
            7,
        ),
    ],
)
def test_cached_tokens_of_llama_cpp_s_timings_are_read(body: bytes, cached: int | None) -> None:
    usage = read_usage(body)
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.cached_tokens) == (50, cached)


def test_the_usage_of_sglangs_own_answers_is_read() -> None:
    body = b'{"text":"a","meta_info":{"id":"x","prompt_tokens":7,"completion_tokens":2,"cached_tokens":4}}'
    assert read_usage(body) == Usage(7, 2)
    assert isinstance(read_usage(body.replace(b"7", b"-7")), RefusedUsage)


def test_the_beginning_of_a_message_counts_its_prompt() -> None:
    event = b'{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":16}}}'
    assert read_beginning(event) == Usage(19, None, 16)
    assert read_beginning(b'{"type":"message_start","message":"x"}') is None
    assert isinstance(read_beginning(event, UsageLimit(18, 18)), RefusedUsage)
