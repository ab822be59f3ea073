"""Lines of a file that may be packed, and may begin with a byte order mark; each with its number for error
messages."""

import codecs
import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError

Row = TypeVar("Row")

MAX_LINE_BYTES = 256 << 20
"""Bytes of one line, unpacked: a file of some kilobytes can hold a line of gigabytes."""


class Lines:
    """Non-empty lines of a file. Raises ConfigError, with the file and the line. `num_empty` counts requests
    with empty prompts, which readers leave out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = self.num_empty = 0

    def __repr__(self) -> str:
        return f"Lines({self.path}:{self.number})"

    def __iter__(self) -> Iterator[bytes]:
        self.number = 0
        try:
            with self._open() as file:
                while line := file.readline(MAX_LINE_BYTES + 1):
                    self.number += 1
                    if self.number == 1:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    if len(line) > MAX_LINE_BYTES:
                        raise self.bad(f"is longer than {MAX_LINE_BYTES:,} bytes")
                    if stripped := line.strip():
                        yield stripped
        except (OSError, EOFError, lzma.LZMAError) as exc:
            raise ConfigError(f"{self.path}: cannot be read: {exc}") from exc

    def first(self) -> bytes:
        """First line. Raises ConfigError where there is none."""
        for line in self:
            return line
        raise ConfigError(f"{self.path}: is empty")

    def decoded(self, kind: type[Row]) -> Iterator[Row]:
        """Lines decoded from JSON."""
        decode = msgspec.json.Decoder(kind).decode
        for line in self:
            try:
                row = decode(line)
            except UNREADABLE as exc:
                raise self.bad(str(exc)) from exc
            yield row

    def bad(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path}:{self.number}: {why}")

    def _open(self) -> IO[bytes]:
        match self.path.suffix:
            case ".xz":
                return lzma.open(self.path)
            case ".gz":
                return cast(IO[bytes], gzip.open(self.path))
            case _:
                return self.path.open("rb")
