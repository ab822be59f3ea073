import io
import json

import pytest

from gateway.replay.array_values import CutShort, json_values

ROWS = [{"a": 'ü\\"]'}, {"b": [1, {"c": "}"}]}, 3, "x"]


def values(text: str, begin: int = 1, limit: int = 1 << 20) -> list[object]:
    data = text.encode()
    return [json.loads(each) for each in json_values(data[:begin], io.BytesIO(data[begin:]), limit)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("begin", [1, 2, 5])
def test_an_array_is_read_one_value_at_a_time(
    monkeypatch: pytest.MonkeyPatch, indent: int | None, begin: int
) -> None:
    monkeypatch.setattr("gateway.replay.array_values.CHUNK_BYTES", 3)
    assert values(json.dumps(ROWS, indent=indent), begin) == ROWS


def test_values_behind_each_other_are_read() -> None:
    assert values('{\n "a": 1\n}\n{\n "a": 2\n}\n') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": ', '[{"a": 1}', '[{"a": 1}, {"a": 1'])
def test_a_cut_array_gives_what_is_whole(text: str) -> None:
    found = json_values(text.encode(), io.BytesIO(), 1 << 20)
    assert json.loads(next(found)) == {"a": 1}
    with pytest.raises(CutShort):
        next(found)


def test_a_value_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replay.array_values.CHUNK_BYTES", 64)
    with pytest.raises(ValueError, match="is longer than 100 bytes"):
        values('["' + "x" * 1000 + '"]', limit=100)
    with pytest.raises(CutShort):
        values("[" * 100_000)
