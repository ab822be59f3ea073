import json
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.table import FORMATS, detect, listing
from gateway.replay.line_reader import Lines


def lines(path: Path, text: str) -> Lines:
    path.write_text(text)
    return Lines(path, is_strict=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"hash_id": [1], "input_length": 3}', "resembles mooncake, but has no hash_ids"),
        ('{"message": []}', "resembles chat, but has no messages"),
        ('{"conversion": []}', "resembles (sharegpt|lmsys), but has no conversation"),
        ("Time,Request tokens,Response tokens\n1,2,3", "resembles burstgpt, but has no Timestamp"),
        ("TIMESTAMP,ContextTokens\n1,2", "resembles azure, but has no GeneratedTokens"),
        ('{"zz": 1}', "resembles none of recording, qwen, "),
        ("hello", "neither JSON nor a CSV header"),
    ],
)
def test_another_format_is_answered_with_the_nearest_one(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"t:1: .*{why}.*see `kvgate replay --formats`"):
        detect(lines(tmp_path / "t", text))


@pytest.mark.parametrize("begin", ["", " \n", '{"timestamp": 0, "inp\n', '{"zz": 1}\n'])
def test_a_broken_first_line_does_not_hide_the_format(tmp_path: Path, begin: str) -> None:
    row = json.dumps({"input_length": 1, "hash_ids": [1]})
    assert detect(lines(tmp_path / "t", begin + row)).name == "mooncake"


def test_all_formats_are_listed() -> None:
    head, *rows = listing()
    assert head.split()[:2] == ["format", "from"]
    assert [row.split()[0] for row in rows] == list(FORMATS)
    for each in FORMATS.values():
        row = next(row for row in rows if row.split()[0] == each.name)
        assert all(name in row for group in each.fields for name in group)


def test_no_two_formats_have_the_same_fields() -> None:
    groups = [(each.is_csv, tuple(group)) for each in FORMATS.values() for group in each.fields]
    assert len(groups) == len(set(groups))
