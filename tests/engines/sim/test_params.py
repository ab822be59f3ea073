"""Reading of requests."""

from typing import Any

import pytest

from engines.sim.params import ApiError, decode_body, read, require, sglang_model
from engines.sim.words import Sampling


def asked(body: dict[str, Any], default: int | None = None) -> Any:
    return read(body, ("m", "alias", "tuned"), ("tuned",), default)


def test_an_empty_request_has_defaults() -> None:
    params = asked({})
    assert (params.model, params.adapter, params.num_choices, params.stream, params.reads_cache) == (
        "m",
        None,
        1,
        False,
        True,
    )
    assert params.sampling(10, 100) == Sampling(90)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_output_length_has_several_names_and_is_bounded_by_the_context(name: str) -> None:
    assert asked({name: 7}).sampling(10, 100).max_tokens == 7
    assert asked({name: 95}).sampling(10, 100).max_tokens == 90


def test_prompt_logprobs_make_the_engine_compute_the_whole_prompt() -> None:
    assert not asked({"prompt_logprobs": 0}).reads_cache
    assert not asked({"echo": True, "logprobs": 1}).reads_cache
    assert asked({"logprobs": 1}).reads_cache


def test_adapters_salts_and_reports() -> None:
    params = asked({"model": "tuned", "cache_salt": "s", "vllm_xargs": {"kv_cache_report_mode": "full"}})
    assert (params.adapter, params.cache_salt, params.reports_hit) == ("tuned", "s", True)


def test_stop_strings_in_both_forms() -> None:
    assert asked({"stop": "a"}).stop == ("a",)
    assert asked({"stop": ["a", "b"]}).stop == ("a", "b")
    assert asked({"stop_sequences": ["c"]}).stop == ("c",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
        ({"stop": [""]}, "stop cannot contain an empty string."),
        ({"max_tokens": -1}, "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)"),
    ],
)
def test_error_messages_are_those_of_vllm(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(body)
    assert (str(caught.value), caught.value.status) == (message, 400)


@pytest.mark.parametrize(
    "body",
    [
        {"stream": "yes"},
        {"max_tokens": "x"},
        {"cache_salt": ""},
        {"model": "zz"},
        {"vllm_xargs": 7},
        {"stream_options": [1]},
        {"stop": 7},
        {"stop": [7]},
    ],
)
def test_wrong_values_are_rejected(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        asked(body)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1"])
def test_bodies_that_are_no_objects_are_rejected(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode_body(data)
    assert caught.value.status == 400


def test_a_missing_field_is_rejected() -> None:
    assert require({"tokens": [1]}, "tokens", list) == [1]
    with pytest.raises(ApiError, match="body.tokens"):
        require({}, "tokens", list)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("m", "m"), ("m:ad", "ad"), ("ad", "m"), ("x:ad", "ad"), ("m:nix", "m:nix"), (None, None)],
)
def test_sglang_takes_an_adapter_s_own_name_for_its_base(given: object, expected: object) -> None:
    assert sglang_model(given, ["m", "ad"], {"ad"}) == expected
