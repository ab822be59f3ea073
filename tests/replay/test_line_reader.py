import bz2
import gzip
import lzma
import os
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


PACKS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("suffix", list(PACKS))
@pytest.mark.parametrize("name", ["t.jsonl", "t.csv.txt", "t"])
def test_a_packed_file_is_known_by_its_first_bytes(tmp_path: Path, suffix: str, name: str) -> None:
    (tmp_path / name).write_bytes(PACKS[suffix](TEXT))
    assert [row.a for row in Lines(tmp_path / name).decoded(Row)] == [1, 2]


@pytest.mark.parametrize(
    ("begin", "why"),
    [(b"PAR1", "Parquet"), (b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xff\xfea\0", "UTF-16")],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, begin: bytes, why: str) -> None:
    (tmp_path / "t").write_bytes(begin + TEXT)
    with pytest.raises(ConfigError, match=f"t: is .*{why}"):
        Lines(tmp_path / "t", is_strict=False).first()


@pytest.mark.parametrize("text", ['[{"a": 1', "[" * 5000, '{\n"a": [1'])
def test_a_file_that_ends_within_its_first_value_is_cut_not_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ConfigError, match="item 1: JSON ends within a value"):
        Lines(tmp_path / "t", is_strict=False).first()


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t")
    with pytest.raises(ConfigError, match="t: is not a file; .* save it"):
        Lines(tmp_path / "t").first()


def test_broken_lines_are_skipped_counted_and_the_first_ones_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(TEXT + b"{\n" * 5 + b'{"a": 3}\n{"a": ')
    lines = Lines(tmp_path / "t", is_strict=False)
    for _ in range(2):  # each iteration counts from the beginning
        assert [row.a for row in lines.decoded(Row)] == [1, 2, 3]
        assert lines.num_skipped == 6
        assert [why.split(":")[0] for why in lines.skipped] == ["line 4", "line 5", "line 6"]


@pytest.mark.parametrize("suffix", list(PACKS))
def test_a_packed_file_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path, suffix: str) -> None:
    rows = b"".join(b'{"a": %d}\n' % (i * 7919 % 100_003) for i in range(200_000))
    packed = PACKS[suffix](rows)
    (tmp_path / "t").write_bytes(packed[: len(packed) * 3 // 4])
    lines = Lines(tmp_path / "t", is_strict=False)
    assert 0 < len(list(lines.decoded(Row))) < 200_000
    assert lines.num_skipped >= 1 and "cannot be read" in lines.skipped[-1]
    with pytest.raises(ConfigError, match="t: cannot be read"):
        list(Lines(tmp_path / "t").decoded(Row))


def test_an_array_in_one_line_may_be_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replay.line_reader.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("gateway.replay.array_values.CHUNK_BYTES", 100)
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbf[" + b'{"a": 1}, ' * 999 + b'{"a": 2}]')
    assert [row.a for row in Lines(tmp_path / "t").decoded(Row)] == [1] * 999 + [2]
    (tmp_path / "t").write_bytes(b'[{"a": 1}, "' + b" " * 2000 + b'"]')
    with pytest.raises(ConfigError, match="t: item 2: is longer than 1,000 bytes"):
        list(Lines(tmp_path / "t").decoded(Row))


def test_items_of_an_array_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b'\n [{"a": 1},\n\n {"b": 2}, {"a": 3}]')
    lines = Lines(tmp_path / "t", is_strict=False)
    assert [row.a for row in lines.decoded(Row)] == [1, 3]
    assert lines.skipped[0].startswith("item 2: ")
    with pytest.raises(ConfigError, match=r"t: item 2: "):
        list(Lines(tmp_path / "t").decoded(Row))
