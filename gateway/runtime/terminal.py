"""Output of commands: the one place where they print, since a text may come from a worker or a client."""

import sys
from typing import Any, TextIO

import msgspec

from gateway.core.printable import printable, printable_json


def print_lines(*lines: str, to: TextIO | None = None, start: str = "") -> None:
    """Print each text as one line, with control characters escaped: to standard output, or `to`. `start` is
    printed as it is, for a terminal."""
    if lines or start:
        print(start + "\n".join(map(printable, lines)), file=to or sys.stdout, flush=True)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, with control characters escaped."""
    print(printable_json(msgspec.json.format(msgspec.json.encode(value))).decode(), flush=True)
