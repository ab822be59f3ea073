"""Requests for a proof of isolation, and the verdicts on their answers."""

import json
import random

import pytest

from gateway.core.eligibility import Isolation
from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.discovery.probed import Facts
from gateway.discovery.salt_proof import requests_of, verdict_of

BASE, ADAPTER = ModelInfo("m", "m", None, 8192), ModelInfo("ad1", "/ad1", "m")


def facts(*models: ModelInfo, block_size: int | None = 16) -> Facts:
    return Facts("http://w:1", "vllm", models, {0: EngineMetrics(block_size=block_size)})


def answer(cached: int | None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return json.dumps({"usage": {"prompt_tokens": 33, "completion_tokens": 1, **details}}).encode()


def test_a_prompt_is_sent_twice_under_a_salt_and_once_under_another() -> None:
    one, again, other = requests_of(facts(ADAPTER, BASE), random.Random(1))
    assert one == again and one["model"] == "m" and one["max_tokens"] == 1
    assert other == one | {"cache_salt": other["cache_salt"]} and other["cache_salt"] != one["cache_salt"]
    later = requests_of(facts(BASE), random.Random(2))
    assert {one["cache_salt"], other["cache_salt"]}.isdisjoint({each["cache_salt"] for each in later})
    assert later[0]["prompt"] != one["prompt"], "no earlier prompt is a hit"


@pytest.mark.parametrize(
    ("block_size", "max_model_len", "num"),
    [(16, 8192, 33), (1, 8192, 33), (4416, 8192, 8191), (None, 8192, 33), (16, None, 33)],
)
def test_a_prompt_has_two_blocks_and_fits(
    block_size: int | None, max_model_len: int | None, num: int
) -> None:
    model = ModelInfo("m", "m", None, max_model_len)
    prompts = [each["prompt"] for each in requests_of(facts(model, block_size=block_size), random.Random(1))]
    assert [len(prompt) for prompt in prompts] == [num] * 3


def test_without_a_base_model_nothing_is_sent() -> None:
    assert requests_of(facts(ADAPTER), random.Random(1)) == []


@pytest.mark.parametrize(
    ("answers", "isolation", "reason"),
    [
        ((answer(0), answer(32), answer(0)), Isolation.APART, "32 tokens cached under their own salt, none"),
        ((answer(None), answer(32), answer(None)), Isolation.APART, "none under another"),
        ((answer(0), answer(32), answer(32)), Isolation.SHARED, "32 tokens of another salt's prompt"),
        ((answer(0), answer(32), answer(1)), Isolation.SHARED, "it ignores cache_salt: 1 tokens"),
        ((answer(0), answer(0), answer(0)), Isolation.UNKNOWN, "it reports no cached tokens"),
        ((answer(None), answer(None), answer(None)), Isolation.UNKNOWN, "it reports no cached tokens"),
        ((answer(0), answer(0), answer(32)), Isolation.SHARED, "32 tokens of another salt's prompt"),
        ((None,), Isolation.UNKNOWN, "it does not answer /v1/completions"),
        ((answer(0), None), Isolation.UNKNOWN, "it does not answer"),
        ((answer(0), answer(32), None), Isolation.UNKNOWN, "it does not answer"),
        ((b"{}", b"[]", b"x"), Isolation.UNKNOWN, "it does not answer"),
        ((), Isolation.UNKNOWN, "it does not answer"),
    ],
)
def test_verdicts(answers: tuple[bytes | None, ...], isolation: Isolation, reason: str) -> None:
    proof = verdict_of(answers)
    assert proof.isolation is isolation
    assert reason in proof.reason
