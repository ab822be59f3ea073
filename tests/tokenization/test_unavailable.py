"""Model without a tokenizer: counted and logged once, and routed by load."""

import logging

import pytest

from gateway import request
from gateway.core.decision import Prompt
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.tokenization.unavailable import Unavailable

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
BODIES = [
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a" * 5000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}),
]


def test_every_prompt_fails_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    prompts = PromptSource({"m": Unavailable("no tokenizer.json in /x")}, metrics)
    with caplog.at_level(logging.WARNING):
        for path, fields in BODIES:
            asked = request(path, {"model": "m", **fields})
            assert prompts.is_local(asked)
            assert prompts.tokenize(asked) == Prompt((), "failed")
    assert metrics.prompt_failures == {"m": len(BODIES)}
    assert len(caplog.messages) == 1
    assert "no tokenizer.json in /x" in caplog.text


def test_the_description_of_an_unavailable_tokenizer_has_the_reason() -> None:
    unavailable = Unavailable("why")
    assert PromptSource({"m": unavailable}, Metrics()).decode("m", [1]) is None
    assert unavailable.describe() == {"encoder": None, "encoder_reason": "why", "templates": []}
    assert repr(unavailable) == "Unavailable('why')"
