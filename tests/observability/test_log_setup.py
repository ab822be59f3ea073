"""Format of the program's own messages."""

import json
import logging
import os
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.observability.access_log import TextLines
from gateway.observability.log_setup import (
    JsonFormatter,
    LogCollector,
    SinkHandler,
    access_log_of,
    text_formatter,
)
from gateway.observability.log_sink import LogSink
from tests.support.ended_requests import ended_request


def record(message: str, *values: object, is_error: bool = False) -> logging.LogRecord:
    error = sys.exc_info() if is_error else None
    made = logging.LogRecord("kvgate.roster", logging.WARNING, "", 0, message, values, error)
    made.created = 1_800_000_000.25
    return made


def test_a_message_is_one_object_on_one_line() -> None:
    line = JsonFormatter(3).format(record("worker %s is down\nand %s", "a:1", '"out"'))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.250000Z",
        "level": "warning",
        "logger": "kvgate.roster",
        "process": 3,
        "message": 'worker a:1 is down\nand "out"',
    }


def test_an_error_brings_its_traceback() -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        fields = json.loads(JsonFormatter().format(record("failed", is_error=True)))
    assert "process" not in fields and fields["exception"].endswith("ValueError: a bug")


def test_text_names_the_process_where_there_are_several() -> None:
    assert text_formatter(3).format(record("up")).endswith(" WARNING [3] kvgate.roster: up")
    assert text_formatter().format(record("up")).endswith(" WARNING kvgate.roster: up")


def test_messages_and_access_log_share_a_sink() -> None:
    reading, writing = os.pipe()
    sink = LogSink(writing)
    handler = SinkHandler(sink)
    handler.setFormatter(JsonFormatter())
    handler.emit(record("up \ud800"))  # a message that cannot be encoded is still logged
    access_log_of("auto", sink)(ended_request())
    handler.close()
    os.close(writing)
    with open(reading, "rb") as file:
        first, second = file.read().splitlines()
    assert json.loads(first)["message"] == "up \\ud800" and json.loads(second)["worker"] == "a:1"


def test_a_message_that_cannot_be_formatted_is_reported_as_by_every_handler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = SinkHandler(LogSink(0))
    handler.emit(record("%d", "no number"))
    assert "Logging error" in capsys.readouterr().err


def test_without_a_sink_lines_are_messages(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(access_log_of("text", None), TextLines)
    with caplog.at_level(logging.INFO):
        access_log_of("json", None)(ended_request())
    assert json.loads(caplog.messages[0])["request_id"] == "r1"


def test_dropped_lines_are_in_the_metrics() -> None:
    sink, registry = LogSink(0), CollectorRegistry()
    sink.num_dropped = 7
    registry.register(LogCollector(sink))
    assert "kvgate_log_dropped_lines_total 7.0" in generate_latest(registry).decode()


def test_a_message_is_one_line_whatever_its_content() -> None:
    line = text_formatter().format(record("model %s", "\x1b[31mm\r\n2026-01-01 ERROR kvgate: forged\u2028"))
    assert line.isprintable()
    assert line.endswith(r"model \x1b[31mm\r\n2026-01-01 ERROR kvgate: forged\u2028")
    assert text_formatter().format(record("modèle 日本")).endswith(": modèle 日本")


def test_no_line_of_a_traceback_looks_like_a_message() -> None:
    try:
        raise ValueError("a\n2026-01-01 ERROR kvgate: forged \x1b[2J")
    except ValueError:
        first, *others = text_formatter().format(record("failed", is_error=True)).split("\n")
    assert first.endswith(": failed")
    assert others[-2:] == ["  ValueError: a", r"  2026-01-01 ERROR kvgate: forged \x1b[2J"]
    assert all(line.startswith("  ") and line.isprintable() for line in others)


@pytest.mark.parametrize("text", ["\x9b2J", "\x7f", "\u202e", "\u2028", "\u0085", "\ufeff"])
def test_controls_beyond_ascii_are_escaped_in_every_form(text: str) -> None:
    for formatter in (JsonFormatter(), text_formatter()):
        line = formatter.format(record("a worker says %s", text))
        assert line.isprintable() and "a worker says \\" in line
    assert json.loads(JsonFormatter().format(record("%s", text)))["message"] == text
