import gzip
import lzma
from pathlib import Path

import msgspec
import pytest

from gateway.core.errors import ConfigError
from gateway.replay.line_reader import Lines

TEXT = b'{"a": 1}\n\n{"a": 2}\n'


class Row(msgspec.Struct):
    a: int


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_packed_files_are_unpacked_and_empty_lines_skipped(tmp_path: Path, suffix: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"t.jsonl{suffix}"
    path.write_bytes(pack(TEXT))
    assert [row.a for row in Lines(path).decoded(Row)] == [1, 2]
    assert Lines(path).first() == b'{"a": 1}'


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT)
    assert [row.a for row in Lines(path).decoded(Row)] == [1, 2]
    path.write_bytes(b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    with pytest.raises(ConfigError, match=r"t\.jsonl:2: "):
        list(Lines(path).decoded(Row))


@pytest.mark.parametrize("bad", [b"{", b'{"a": "x"}', b'{"a": 1}\xff', b"[]"])
def test_a_bad_line_is_named(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(TEXT + bad + b"\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl:4: "):
        list(Lines(path).decoded(Row))


@pytest.mark.parametrize("name", ["t.jsonl", "t.xz", "t.gz"])
def test_an_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Lines(tmp_path / name).first()
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is empty|cannot be read"):
        Lines(tmp_path / name).first()


@pytest.mark.parametrize(("name", "pack"), [("t.xz", lzma.compress), ("t.gz", gzip.compress)])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(TEXT)[:-9])  # type: ignore[operator]
    with pytest.raises(ConfigError, match="cannot be read"):
        list(Lines(tmp_path / name).decoded(Row))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_an_endless_line_is_not_unpacked_whole(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.replay.line_reader.MAX_LINE_BYTES", 1000)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"t.jsonl{suffix}"
    path.write_bytes(pack(b'{"a": 1}\n' + b" " * 1000 + b"\n"))
    with pytest.raises(ConfigError, match="jsonl.*:2: is longer than 1,000 bytes"):
        list(Lines(path))
