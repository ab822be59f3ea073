import json
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.formats.table import FORMATS, detect, listing
from gateway.replay.line_reader import Lines
from gateway.replay.traces import read


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


FIELDS = sorted(
    {field.removesuffix("[]") for form in FORMATS.values() for group in form.fields for field in group}
)
FIELDS += ["response", "completions", "session_id", "model", "delay", "system", "tools", "payloads", "url"]
VALUES: list[Any] = [
    None, True, 0, -1, 600, 10**30, 1.5, 1e300, "", "x", "nan", "2025-01-01T00:00:00Z", [], [1], [-1], ["x"],
    {}, {"a": 1}, {"content": [3]}, [{"role": "user", "content": "x"}], [{"role": 3}],
    [{"content": [{"type": 5}]}],
    [{"from": "human", "value": "x"}, {"from": "gpt", "value": {}}], [{"prompt": "x", "session_id": 1}],
    [{"text": "x"}, {"texts": ["x"]}], [{"payloads": [{"messages": []}]}],
]  # fmt: skip


CELLS = ("1", "7", "x", "", "-3", "1e400", '"', "2025-01-01")


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("is_strict", [True, False])
def test_rows_of_any_values_are_read_or_named(tmp_path: Path, name: str, is_strict: bool) -> None:
    """Nothing but a ConfigError leaves a reader, whatever a row has."""
    rng, form, path = random.Random(name), FORMATS[name], tmp_path / "t"
    options = TraceOptions(encode=lambda text: list(text.encode()), is_strict=is_strict)
    for _ in range(200):
        group = rng.choice(form.fields)
        fields = [[*group, *rng.sample(FIELDS, 2)] for _ in range(3)]
        rows = [{field.removesuffix("[]"): rng.choice(VALUES) for field in names} for names in fields]
        lines = map(json.dumps, rows)
        if form.is_csv:
            cells = [[rng.choice(CELLS) for _ in group] for _ in rows]
            lines = map(",".join, [list(group), *cells])
        path.write_text("\n".join(lines))
        try:
            assert read(path, options, name).jobs
        except ConfigError as exc:
            assert str(path) in str(exc)
