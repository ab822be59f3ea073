import json
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.columns import header_of
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.traces import Requests, read

BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a,410,20,430,API log
47,b,980,0,980,API log
"""
BURST_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log
5,1,2.5,a,410,20,430,x
47,1,2.5,b,980,1,981,x
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:05+00:00,2,410,20
2024-10-15T00:00:47Z,0,980,1
"""
QUOTED = """"TIMESTAMP";"ContextTokens";"GeneratedTokens"\r
"2023-11-16 18:00:05";"410";"20"\r
"2023-11-16 18:00:47";"980";"1"\r
"""
SPACED = """TIMESTAMP, "ContextTokens", GeneratedTokens, Note
2023-11-16 18:00:05 UTC, "410", 20, caf\xe9
2023-11-16 18:00:47 UTC, 980, 1, "x"
"""
BROKEN_LINES = """id,messages,startTime,prompt_tokens,completion_tokens
x,"[{""role"": ""user"",

  ""content"": ""a, b""}]",2025-01-01T00:00:05Z,410,20
y,"LONG
",2025-01-01T00:00:47Z,980,1
""".replace("LONG", "long " * 50_000)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n5.0,410,20\n47.0,980.0,1\n"
SPEND = """request_id,model,startTime,prompt_tokens,completion_tokens
x,"a, b",2025-01-01T00:00:05.000Z,410,20
y,c,2025-01-01T00:00:47Z,980,1
"""


def trace(path: Path, text: str, is_strict: bool = True) -> Requests:
    path.write_text(text, encoding="utf-8")
    return read(path, TraceOptions(is_strict=is_strict))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (BURST, "burstgpt"),
        (BURST_SESSIONS, "burstgpt"),
        (AZURE_2025, "azure"),
        (QUOTED, "azure"),
        ("\ufeff" + QUOTED, "azure"),
        ("\ufeff" + BURST, "burstgpt"),
        (VIDUR, "vidur"),
        (SPEND, "csv"),
        (SPACED, "azure"),
        (BROKEN_LINES, "csv"),
    ],
    ids=[
        "burst",
        "burst-sessions",
        "azure-2025",
        "quoted",
        "bom-quoted",
        "bom",
        "vidur",
        "spend",
        "spaced",
        "line-breaks",
    ],
)
def test_columns_are_found_by_their_names(tmp_path: Path, text: str, name: str) -> None:
    found = trace(tmp_path / "t.csv", text)
    assert found.read_as.split(",")[0] == name
    assert [(job.at, job.num_tokens, job.num_output) for job in found.jobs] == [(0, 410, 20), (42, 980, 1)]


def test_a_quote_that_is_not_closed_spoils_its_own_line_alone(tmp_path: Path) -> None:
    text = SPEND + 'z,"c,2025-01-01T00:00:49Z,1,1\n' + SPEND
    found = trace(tmp_path / "t.csv", text, is_strict=False)
    assert len(found.jobs) == 4 and found.num_skipped == 1
    assert found.skipped[0].startswith("line 4: ")


def test_a_byte_that_is_no_utf8_spoils_no_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(SPACED.encode("latin-1"))
    assert len(read(tmp_path / "t.csv", TraceOptions()).jobs) == 2


def test_models_of_a_column_are_kept_apart(tmp_path: Path) -> None:
    assert [job.model for job in trace(tmp_path / "t.csv", BURST).jobs] == ["m", "m1"]


@pytest.mark.parametrize("bad", ["7,a,x,1", "7", "7,a,1.5,1", '7,"a,1,1', "soon,a,1,1", ",a,1,1", "7,a,-3,1"])
def test_a_bad_row_is_skipped_or_refused(tmp_path: Path, bad: str) -> None:
    text = f"{BURST}{bad}\n60,a,1,1\n"
    found = trace(tmp_path / "t.csv", text, is_strict=False)
    assert (len(found.jobs), found.num_skipped) == (3, 1) and found.skipped[0].startswith("line 4: ")
    with pytest.raises(ConfigError, match=r"t\.csv:4: "):
        trace(tmp_path / "t.csv", text)


def test_a_header_in_the_middle_is_no_request(tmp_path: Path) -> None:
    assert len(trace(tmp_path / "t.csv", BURST + BURST).jobs) == 4


@pytest.mark.parametrize(
    ("line", "names"), [(b"a, b", ["a", "b"]), (b"a", []), (b"\xff,b", []), (b'"a,b', [])]
)
def test_a_header_has_several_names(line: bytes, names: list[str]) -> None:
    assert header_of(line) == names


@pytest.mark.parametrize(
    "names",
    [
        ("timestamp", "prompt_tokens", "completion_tokens"),
        ("timestamp", "input_tokens", "output_tokens"),
        ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        ("Timestamp", "Request tokens", "Response tokens"),
    ],
)
def test_rows_of_json_have_the_same_columns(tmp_path: Path, names: tuple[str, ...]) -> None:
    rows = [dict(zip(names, values, strict=True)) for values in ((5, 410, 20), (47, "980", 0))]
    found = trace(tmp_path / "t.json", json.dumps([*rows, {names[0]: 50, names[1]: None}]), is_strict=False)
    assert found.read_as.startswith("lengths, ")
    assert [(job.num_tokens, job.num_output) for job in found.jobs] == [(410, 20), (980, 1)]
    assert found.skipped == ("item 3: no number of tokens: could not convert string to float: ''",)
