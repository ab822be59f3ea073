from typing import cast

import pytest

from gateway.core.decision import Decision
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.usage import Usage
from gateway.observability.metrics import Metrics, WorkerMetrics
from gateway.observability.request_end import RequestEnd
from gateway.proxy.accounting import Ending, account, count_answer, count_request
from gateway.requests.parsing import parse_request
from tests.support.worlds.exchanges import ExchangeWorld


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


def test_the_end_of_an_exchange_frees_its_booking_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, ends = ExchangeWorld(monkeypatch, "w:1"), list[RequestEnd]()
    world.context.end_observers.append(ends.append)
    exchange, now = world.ask()[0], world.loop.time()
    assert exchange.decision and world.in_flight() == 1
    metrics = world.metrics.worker(exchange.decision.worker.id)

    def ending(result: str, status: int, is_refused: bool = False) -> Ending:
        return Ending(
            result,
            "",
            status,
            "completion",
            sent_s=now,
            ended_s=now + 2.0,
            answer=None,
            usage=None,
            worker_metrics=metrics,
            is_refused=is_refused,
        )

    account(world.context, exchange, ending("ended", 200))
    assert world.in_flight() == 0 and world.metrics.responses == {200: 1}
    assert (ends[0].result, ends[0].status, ends[0].lasted_s) == ("ended", 200, 2.0)
    assert metrics.num_answered == 1
    account(world.context, exchange, ending("aborted", 200))
    assert metrics.num_answered == 1 and len(ends) == 2
