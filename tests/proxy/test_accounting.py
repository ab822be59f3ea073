from typing import cast

import pytest

from gateway.core.decision import Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.usage import Usage
from gateway.observability.metrics import Metrics, WorkerMetrics
from gateway.proxy.accounting import count_answer, count_request
from gateway.requests.parsing import parse_request


class Decided:
    model, overlap_tokens, split = "m", 16, None

    def __init__(self, prompt_from: str = "text") -> None:
        self.prompt_from = prompt_from


DECISION = cast(Decision, Decided())


def test_a_request_is_counted_by_its_status() -> None:
    metrics = Metrics()
    request = parse_request("/v1/completions", b'{"model":"m","prompt":"x"}')
    count_request(metrics, request, DECISION, "completion", 200, 0.5)
    count_request(metrics, request, None, "completion", 503, 0.5)
    assert metrics.responses == {200: 1, 503: 1}


@pytest.mark.parametrize(("status", "num_answered"), [(200, 1), (404, 1), (500, 0), (503, 0)])
def test_errors_of_workers_are_no_answers(status: int, num_answered: int) -> None:
    metrics = WorkerMetrics()
    count_answer(metrics, DECISION, status, None)
    assert metrics.num_answered == num_answered


@pytest.mark.parametrize(("prompt_from", "tokens"), [("text", 7), (BEFORE_MEDIA, 0)])
def test_reported_usage_is_counted_where_the_whole_prompt_is_known(prompt_from: str, tokens: int) -> None:
    metrics = WorkerMetrics()
    count_answer(metrics, cast(Decision, Decided(prompt_from)), 200, Usage(100, 7))
    assert metrics.completion_tokens == tokens
