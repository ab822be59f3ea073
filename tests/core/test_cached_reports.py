"""Cached tokens that an engine leaves out where there are none."""

from dataclasses import replace

import pytest

from gateway.core.cached_reports import MAX_WORKERS, CachedReports
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Worker
from tests.support.fakes import worker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUMBER, NULL, NOTHING, SILENT = (
    b'{"usage":{"prompt_tokens":9,"completion_tokens":1%b}}' % details
    for details in (
        b',"prompt_tokens_details":{"cached_tokens":4}',
        b',"prompt_tokens_details":null',
        b"",
        b',"prompt_tokens_details":{}',
    )
)


class Answers:
    """Reports, and answers of one worker after another."""

    def __init__(self) -> None:
        self.reports = CachedReports()

    def cached(self, body: bytes, of: Worker, path: str = CHAT, *, is_stream: bool = False) -> int | None:
        usage = read_usage(body)
        assert isinstance(usage, Usage)
        settled = self.reports.settled(usage, of, path, is_stream=is_stream)
        assert (settled.prompt_tokens, settled.completion_tokens) == (9, 1)
        return settled.cached_tokens


def test_null_means_0_once_a_number_was_reported() -> None:
    answers, a, b = Answers(), worker("a:1"), worker("b:1")
    assert [answers.cached(body, a) for body in (NULL, NULL, NUMBER, NULL)] == [None, None, 4, 0]
    assert answers.cached(NULL, a, COMPLETIONS, is_stream=True) == 0
    assert answers.cached(NULL, b) is None
    assert repr(answers.reports) == "CachedReports(1 workers)"


def test_nothing_means_0_on_answers_of_a_kind_that_had_a_number() -> None:
    """Streams of vLLM have no details where nothing was cached; other routes never have any."""
    answers, a = Answers(), worker("a:1")
    assert answers.cached(NOTHING, a, is_stream=True) is None
    assert answers.cached(NUMBER, a, is_stream=True) == 4
    assert answers.cached(NOTHING, a, is_stream=True) == 0
    assert answers.cached(NOTHING, a) is None
    assert answers.cached(NOTHING, a, COMPLETIONS, is_stream=True) is None


def test_details_without_the_number_are_unknown() -> None:
    answers, a = Answers(), worker("a:1")
    assert [answers.cached(body, a) for body in (NUMBER, SILENT)] == [4, None]


@pytest.mark.parametrize(("says", "cached"), [(True, 0), (False, None), (None, None)])
def test_null_means_0_of_a_worker_that_says_it_reports(says: bool | None, cached: int | None) -> None:
    answers, a = Answers(), replace(worker("a:1"), reports_cached_tokens=says)
    assert answers.cached(NULL, a) == cached
    assert answers.cached(NOTHING, a) is None


def test_another_process_has_to_report_again() -> None:
    answers = Answers()
    assert answers.cached(NUMBER, worker("a:1")) == 4
    assert answers.cached(NULL, worker("a:1")) is None


def test_memory_is_bounded() -> None:
    answers = Answers()
    for number in range(MAX_WORKERS + 10):
        answers.cached(NUMBER, worker(f"a:{number}"))
    assert repr(answers.reports) == f"CachedReports({MAX_WORKERS} workers)"


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        (b'"prompt_tokens":9', Usage(9)),
        (b'"prompt_tokens":9,"prompt_tokens_details":null', Usage(9, has_null=True)),
        (b'"prompt_tokens":9,"prompt_tokens_details":{}', Usage(9, has_null=None)),
        (b'"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":null}', Usage(9, has_null=True)),
        (b'"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}', Usage(9, None, 0)),
        (b'"input_tokens":9', Usage(9)),
        (b'"input_tokens":9,"input_tokens_details":null', Usage(9, has_null=True)),
        (b'"input_tokens":9,"input_tokens_details":{"cached_tokens":null}', Usage(9, has_null=True)),
        (b'"input_tokens":9,"cache_read_input_tokens":null', Usage(9, has_null=True)),
        (b'"input_tokens":9,"cache_read_input_tokens":0', Usage(9, None, 0)),
        (b'"input_tokens":5,"cache_read_input_tokens":4,"input_tokens_details":null', Usage(9, None, 4)),
    ],
)
def test_missing_null_and_0_are_distinguished(usage: bytes, read: Usage) -> None:
    assert read_usage(b'{"usage":{%b}}' % usage) == read
