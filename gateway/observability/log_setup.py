"""The program's own messages: as text for people or as a line of JSON each, by way of a sink."""

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.observability.access_log import JsonLines, TextLines, log
from gateway.observability.log_sink import Sink, plain_notice
from gateway.observability.metric_spec import counter
from gateway.observability.request_end import Teller

STDERR = 2


class JsonFormatter(logging.Formatter):
    """`process` is the number of one of several."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
            "message": _encodable(record.getMessage()),
        }
        if record.exc_info:
            told["exception"] = _encodable(self.formatException(record.exc_info))
        return msgspec.json.encode(told).decode()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class SinkHandler(logging.Handler):
    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  as every handler: a message that cannot be made must not raise
            self.handleError(record)
        else:
            self._sink.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """At the end of the program (`logging.shutdown`)."""
        self._sink.close()
        super().close()


class TextFormatter(logging.Formatter):
    """One line for each message, whatever clients, workers and files put into it: a line break there would
    forge a line, an escape sequence would reach the reader's terminal. Lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join("  " + _printable(line) for line in lines)


def _printable(text: str) -> str:
    """Unchanged, but for control characters and what else has no glyph: these are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def text_formatter(process: int | None = None) -> logging.Formatter:
    number = "" if process is None else f" [{process}]"
    return TextFormatter(f"%(asctime)s %(levelname)s{number} %(name)s: %(message)s")


def set_up(level: str, form: str, process: int | None = None) -> Sink:
    """Messages of this level and above go to standard error in that form, as lines of requests do. Where
    somebody has set logging up already, as a program around us may have, it stays as it is."""
    is_json = form == "json"
    formatter = JsonFormatter(process) if is_json else text_formatter(process)

    def notice(num: int) -> bytes:
        text = plain_notice(num)[:-1].decode()
        record = logging.LogRecord("kvgate.log", logging.WARNING, "", 0, text, None, None)
        return formatter.format(record).encode() + b"\n"

    sink = Sink(_standard_error(), notice=notice)
    handler = SinkHandler(sink)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return sink


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError):  # a program around us has put something else there
        return STDERR


def request_teller(form: str, sink: Sink | None) -> Teller:
    """Lines of requests: words only where text is asked for. Without a sink they are messages."""
    if form == "text":
        return TextLines()
    return JsonLines(sink.write if sink else lambda line: log.info("%s", line[:-1].decode()))


DROPPED = counter(
    "kvgate_log_dropped_lines_total", "Log lines dropped because the reader of standard error was too slow."
)
METRICS = (DROPPED,)


class LogCollector(Collector):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def collect(self) -> Iterator[Metric]:
        yield DROPPED.single(self._sink.num_dropped)
