import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import EmptyPrompt, RowProblem, TraceOptions, TraceReading, check_tokens
from gateway.replay.job import MAX_TOKENS


def test_all_rows_have_times_of_one_kind() -> None:
    reading = TraceReading(TraceOptions())
    assert reading.ticks(3) == 3.0 and reading.ticks("4.5") == 4.5
    for other in (None, "", "2025-01-01"):
        with pytest.raises(RowProblem, match="where the first request has a number"):
            reading.ticks(other)
    for bad in ("soon", 1e21, float("nan")):
        with pytest.raises(RowProblem):
            reading.ticks(bad)


def test_sizes_of_a_request_are_bounded() -> None:
    check_tokens(1, 0)
    with pytest.raises(EmptyPrompt):
        check_tokens(0, 1)
    for sizes in ((-1, 1), (1, -1), (MAX_TOKENS + 1, 1), (1, MAX_TOKENS + 1)):
        with pytest.raises(RowProblem, match="tokens must be from 0 to"):
            check_tokens(*sizes)


def test_texts_require_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        TraceReading(TraceOptions()).encode("x")
