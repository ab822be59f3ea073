"""Lines of a file that may be packed, and may begin with a byte order mark; each with its number for error
messages. The values of a JSON array, or of indented JSON, count as lines."""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.replay.array_values import CutShort, json_values

Row = TypeVar("Row")

MAX_LINE_BYTES = 256 << 20
"""Bytes of one line, unpacked: a file of some kilobytes can hold a line of gigabytes."""
BEGIN_BYTES = 1 << 12
_NOT_IN_LINES = re.compile(rb"\s*(?:\[|\{[ \t]*(?:\r?\n|\Z))")
"""Beginnings of a JSON array, which may be one line of any length, and of indented JSON."""
MAX_NAMED = 3
"""Skipped lines that are named; all are counted."""
NOT_TEXT = {
    b"PAR1": "is a Parquet file; convert it to JSON lines",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; give the file in it, as CSV or JSON lines",
    b"\x28\xb5\x2f\xfd": "is packed with zstd; unpack it with `zstd -d`",
    codecs.BOM_UTF16_LE: "is UTF-16; save it as UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16; save it as UTF-8",
}
"""First bytes of files that are something else, with advice."""
MAX_MAGIC = 6


class Lines:
    """Non-empty lines of a file. Raises ConfigError, with the file and the line.

    A line that cannot be read is skipped and counted (`num_skipped`; the first ones are named in `skipped`),
    and so is the rest of a file that ends early; if `is_strict`, it is an error. The same holds for requests
    with empty prompts, which readers leave out (`num_empty`, `empty`).
    """

    def __init__(self, path: Path, is_strict: bool = True) -> None:
        self.path = path
        self.is_strict = is_strict
        self._begin()

    def _begin(self) -> None:
        self.number = self.num_empty = self.num_skipped = 0
        self.skipped: list[str] = []
        self.empty: list[str] = []
        self._has_items = False

    def __repr__(self) -> str:
        return f"Lines({self.path}:{self.number})"

    def __iter__(self) -> Iterator[bytes]:
        self._begin()
        try:
            with self._open() as file:
                begin = file.read(BEGIN_BYTES).removeprefix(codecs.BOM_UTF8)
                if _NOT_IN_LINES.match(begin):
                    yield from self._values(begin, file)
                    return
            with self._open() as file:
                yield from self._lines(file)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as exc:
            why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            if not self.number or self.is_strict:
                raise ConfigError(f"{self.path}: cannot be read: {why}") from exc
            self.number += 1
            self.skip(f"cannot be read, nor what follows: {why}")

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        while line := file.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            if self.number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) > MAX_LINE_BYTES:
                raise self.bad(f"is longer than {MAX_LINE_BYTES:,} bytes")
            if stripped := line.strip():
                yield stripped

    def _values(self, begin: bytes, file: IO[bytes]) -> Iterator[bytes]:
        """Values of JSON that is not written in lines, each numbered as an item."""
        self.number, self._has_items = 0, True
        values = json_values(begin, file, MAX_LINE_BYTES)
        while True:
            self.number += 1
            try:
                yield next(values)
            except StopIteration:
                self.number -= 1
                return
            except CutShort as exc:
                self.skip(f"{exc}; the file may be truncated")
                return
            except ValueError as exc:
                raise self.bad(str(exc)) from exc

    def first(self) -> bytes:
        """First line. Raises ConfigError where there is none."""
        for line in self:
            return line
        if self.skipped:
            raise ConfigError(f"{self.path}: cannot be read: {self.skipped[0]}")
        raise ConfigError(f"{self.path}: is empty")

    def decoded(self, kind: type[Row]) -> Iterator[Row]:
        """Lines decoded from JSON; those that do not decode are skipped."""
        decode = msgspec.json.Decoder(kind).decode
        for line in self:
            try:
                row = decode(line)
            except UNREADABLE as exc:
                self.skip(str(exc))
            else:
                yield row

    def skip(self, why: str) -> None:
        """Skip the current line. Raises ConfigError if `is_strict`."""
        if self.is_strict:
            raise self.bad(why)
        self.num_skipped += 1
        if len(self.skipped) < MAX_NAMED:
            self.skipped.append(f"{self._place}: {why}")

    def leave_out(self) -> None:
        """Leave out the current line for its empty prompt. Raises ConfigError if `is_strict`."""
        if self.is_strict:
            raise self.bad("the prompt is empty")
        self.num_empty += 1
        if len(self.empty) < MAX_NAMED:
            self.empty.append(self._place)

    @property
    def _place(self) -> str:
        return f"{'item' if self._has_items else 'line'} {self.number}"

    def bad(self, why: str) -> ConfigError:
        """Make an error that names the current line."""
        place = f" item {self.number}" if self._has_items else str(self.number)
        return ConfigError(f"{self.path}:{place}: {why}")

    def _open(self) -> IO[bytes]:
        """Open a file by its first bytes, whatever its name ends with. Raises ConfigError for a pipe: its
        lines cannot be read a second time."""
        if self.path.is_fifo() or self.path.is_char_device():
            raise ConfigError(
                f"{self.path}: is not a file; traces are read several times: save it in one first"
            )
        with self.path.open("rb") as file:
            begin = file.read(MAX_MAGIC)
        for magic, why in NOT_TEXT.items():
            if begin.startswith(magic):
                raise ConfigError(f"{self.path}: {why}")
        if begin.startswith(b"\xfd7zXZ") or self.path.suffix == ".xz":
            return lzma.open(self.path)
        if begin.startswith(b"\x1f\x8b") or self.path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(self.path))
        if begin.startswith(b"BZh") or self.path.suffix == ".bz2":
            return bz2.open(self.path)
        return self.path.open("rb")
