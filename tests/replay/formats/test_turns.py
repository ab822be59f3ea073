import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.traces import Requests, read


def trace(path: Path, rows: list[dict[str, Any]], **options: Any) -> Requests:
    path.write_text("\n".join(map(json.dumps, rows)))
    return read(path, TraceOptions(encode=lambda text: list(text.encode()), **options))


@pytest.mark.parametrize("empty", [{"input": ""}, {"input": None}, {"output": "x"}])
def test_a_row_without_a_prompt_is_counted(tmp_path: Path, empty: dict[str, Any]) -> None:
    rows = [empty, {"input": "a", "output": None}, empty, {"input": "b"}]
    found = trace(tmp_path / "t.jsonl", rows, is_strict=False)
    assert (len(found.jobs), found.num_empty, found.num_skipped) == (2, 2, 0)
    assert found.empty == ("line 1", "line 3")


@pytest.mark.parametrize(("ticks", "unit"), [(1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")])
@pytest.mark.parametrize("begin", [0, 1.76e9])
def test_any_unit_of_a_clock_is_found(tmp_path: Path, ticks: float, unit: str, begin: float) -> None:
    rows = [{"input": "x", "timestamp": (begin + 2 * i) * ticks} for i in range(4)]
    found = trace(tmp_path / "t.jsonl", rows)
    assert [round(job.at, 3) for job in found.jobs] == [0, 2, 4, 6]
    assert found.read_as == f"turns, texts, times in {unit}"


def test_iso_times_are_read(tmp_path: Path) -> None:
    rows = [{"input": "x", "timestamp": f"2025-03-01T00:00:0{i}.5Z"} for i in range(3)]
    assert [job.at for job in trace(tmp_path / "t.jsonl", rows).jobs] == [0, 1, 2]


def test_a_row_without_a_time_among_others_is_skipped(tmp_path: Path) -> None:
    rows = [
        {"input": "x", "timestamp": 0},
        {"input": "x"},
        {"input": "x", "timestamp": "2025-03-01T00:00:00"},
    ]
    found = trace(tmp_path / "t.jsonl", rows, is_strict=False)
    assert found.skipped == (
        "line 2: has no time, where the first request has a number as its time",
        "line 3: has an ISO time, where the first request has a number as its time",
    )


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        ([{"input": "x", "timestamp": 1}], {"rate": 2.0}, "--rate: .* has times"),
        ([{"input": "x"}], {"ticks_per_s": 1.0}, "--trace-unit: .* has no times"),
        ([{"input": "x"}], {"block_size": 16}, "--trace-block-size: .* has no hash_ids"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        trace(tmp_path / "t.jsonl", rows, **options)


def test_an_input_may_be_a_list_of_messages(tmp_path: Path) -> None:
    rows = [{"input": "user: x\n"}, {"input": [{"role": "user", "content": "x"}]}]
    first, second = trace(tmp_path / "t.jsonl", rows).jobs
    assert list(first.tokens()) == list(second.tokens())
