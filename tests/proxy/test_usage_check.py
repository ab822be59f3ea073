import logging

import pytest

from gateway.core.engine import StreamUsage
from gateway.core.usage import Usage, UsageLimit
from gateway.core.worker import WorkerId
from gateway.http.messages import ResponseHead
from gateway.http.response_observer import ResponseObserver
from gateway.observability.metrics import Metrics
from gateway.proxy.usage_check import UsageCheck
from tests.support.fakes import decision

GOOD = b'{"usage":{"prompt_tokens":5,"completion_tokens":2}}'
BAD = b'{"usage":{"prompt_tokens":5,"completion_tokens":-9}}'


def answer_of(body: bytes) -> ResponseObserver:
    head = ResponseHead(200, [(b"content-type", b"application/json")], None)
    answer = ResponseObserver(head, limit=UsageLimit(100, 100))
    answer.feed(body, 0.0)
    return answer


def test_rejected_usage_is_counted_and_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    metrics = Metrics()
    usages = UsageCheck(metrics, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        assert usages.of(answer_of(GOOD), decision()) == Usage(5, 2)
        for _ in range(1000):
            assert usages.of(answer_of(BAD), decision()) is None
        now[0] = 60.0
        assert usages.of(answer_of(BAD), decision()) is None
    why = "Expected `int` >= 0 - at `$.completion_tokens`"
    assert [record.message for record in caplog.records] == [
        f"worker w:1: usage ignored ({why}); no metric counts it",
        f"worker w:1: usage ignored ({why}); no metric counts it (999 more in 60 s)",
    ]
    assert metrics.worker(WorkerId("w:1")).num_refused_usages == 1001


@pytest.mark.parametrize(
    ("num_answers", "engine", "cached"), [(1, "vllm", 4), (2, "vllm", None), (2, "a", 4)]
)
def test_hits_of_copies_are_no_hits(num_answers: int, engine: str, cached: int | None) -> None:
    """The other counts stay."""
    body = b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
    answer = ResponseObserver(
        ResponseHead(200, [(b"content-type", b"application/json")], None),
        limit=UsageLimit(100, 100, num_answers),
    )
    answer.feed(body, 0.0)
    assert decision().worker.engine == "vllm"
    usage = UsageCheck(Metrics(), {engine: StreamUsage(copies_hit=True)}).of(answer, decision())
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, cached)


def test_an_answer_without_usage_is_not_rejected() -> None:
    metrics = Metrics()
    assert UsageCheck(metrics).of(answer_of(b"{}"), decision()) is None
    assert not list(metrics.items())


def test_null_is_0_once_the_worker_has_reported_a_number() -> None:
    details = b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":%b}}'
    usages, made = UsageCheck(Metrics()), decision()

    def cached(text: bytes) -> int | None:
        usage = usages.of(answer_of(details % text), made, "/v1/completions")
        assert usage is not None
        return usage.cached_tokens

    assert [cached(text) for text in (b"null", b'{"cached_tokens":4}', b"null", b"{}")] == [None, 4, 0, None]
