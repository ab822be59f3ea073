"""Telemetry by configuration: the access log, the traces and their collectors."""

from gateway.config import load
from gateway.observability.access_log import JsonLines, TextLines
from gateway.observability.log_sink import LogSink
from gateway.observability.telemetry import Telemetry


def test_nothing_is_logged_by_default() -> None:
    telemetry = Telemetry(load({}, {}), None)
    assert (telemetry.end_observers, telemetry.collectors) == ([], [])


def test_access_log_lines_are_json_unless_configured_as_text() -> None:
    sink = LogSink(2)
    kinds = []
    for form in ("auto", "json", "text"):
        telemetry = Telemetry(load({"log_requests": True, "log_format": form}, {}), sink)
        kinds.append(type(telemetry.end_observers[0]))
        assert len(telemetry.collectors) == 1
    assert kinds == [JsonLines, JsonLines, TextLines]
