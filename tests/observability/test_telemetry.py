"""What is told where, by the configuration."""

from gateway.config import load
from gateway.observability.access_log import JsonLines, TextLines
from gateway.observability.log_sink import Sink
from gateway.observability.telemetry import Telling


def test_nothing_is_told_unasked() -> None:
    telling = Telling(load({}, {}), None)
    assert (telling.tellers, telling.collectors) == ([], [])


def test_lines_of_requests_are_json_unless_text_is_asked_for() -> None:
    sink = Sink(2)
    kinds = []
    for form in ("auto", "json", "text"):
        telling = Telling(load({"log_requests": True, "log_format": form}, {}), sink)
        kinds.append(type(telling.tellers[0]))
        assert len(telling.collectors) == 1
    assert kinds == [JsonLines, JsonLines, TextLines]
