"""Logging set-up: the program's messages as text or as JSON lines, written through a sink."""

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.core.printable import printable, printable_json
from gateway.observability.access_log import JsonLines, TextLines, log
from gateway.observability.log_sink import LogSink, plain_notice
from gateway.observability.metric_spec import counter
from gateway.observability.request_end import OnEnd

STDERR = 2


class JsonFormatter(logging.Formatter):
    """Formats each message as a line of JSON; `process` is this process's number among several."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
            "message": _encodable(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = _encodable(self.formatException(record.exc_info))
        return printable_json(msgspec.json.encode(fields)).decode()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class SinkHandler(logging.Handler):
    def __init__(self, sink: LogSink) -> None:
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
        """Close the sink at the end of the program (`logging.shutdown`)."""
        self._sink.close()
        super().close()


class TextFormatter(logging.Formatter):
    """Formats each message as one line, with control characters escaped: a line break from a client, worker
    or file would forge a log line, an escape sequence would reach the reader's terminal. Lines of a traceback
    are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join("  " + printable(line) for line in lines)


def text_formatter(process: int | None = None) -> logging.Formatter:
    number = "" if process is None else f" [{process}]"
    return TextFormatter(f"%(asctime)s %(levelname)s{number} %(name)s: %(message)s")


def set_up(level: str, form: str, process: int | None = None) -> LogSink:
    """Log messages of this level and above to standard error in the given form, as the access log does.
    Logging that an embedding program has set up already is left unchanged."""
    is_json = form == "json"
    formatter = JsonFormatter(process) if is_json else text_formatter(process)

    def notice(num: int) -> bytes:
        text = plain_notice(num)[:-1].decode()
        record = logging.LogRecord("kvgate.log", logging.WARNING, "", 0, text, None, None)
        return formatter.format(record).encode() + b"\n"

    sink = LogSink(_standard_error(), notice=notice)
    handler = SinkHandler(sink)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return sink


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError):  # an embedding program has replaced standard error
        return STDERR


def access_log_of(form: str, sink: LogSink | None) -> OnEnd:
    """The access log in the given form, which is text only if configured so. Without a sink, each line is
    logged as a message."""
    if form == "text":
        return TextLines()
    return JsonLines(sink.write if sink else lambda line: log.info("%s", line[:-1].decode()))


DROPPED = counter(
    "kvgate_log_dropped_lines_total", "Log lines dropped because the reader of standard error was too slow."
)
METRICS = (DROPPED,)


class LogCollector(Collector):
    def __init__(self, sink: LogSink) -> None:
        self._sink = sink

    def collect(self) -> Iterator[Metric]:
        yield DROPPED.single(self._sink.num_dropped)
