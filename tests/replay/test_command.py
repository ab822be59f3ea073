import json
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.replay import calibration
from tests.support.recordings import recorded, trace


def test_a_table_a_document_and_a_chart_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl").path
    reported, drawn = tmp_path / "r.json", tmp_path / "r.html"
    arguments = [
        "replay",
        str(path),
        "--workers",
        "4",
        "--policy",
        "round_robin",
        "--processes",
        "1",
        "--speed",
        "2",
    ]
    assert main([*arguments, "--json", str(reported), "--picture", str(drawn), "--slo-ttft-s", "1000ms"]) == 0
    heading, titles, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith("t.jsonl: 40 requests at 2x, 4 workers h100-8b; good: TTFT <= 1 s")
    assert heading.endswith("; read as mooncake, hashes of 512 tokens, times in ms")
    assert titles.startswith("policy") and [row.split()[0] for row in rows] == [
        "round_robin",
        "pooled",
        "all_knowing",
    ]
    document = json.loads(reported.read_text())
    assert [row["policy"] for row in document["rows"]] == ["round_robin", "pooled", "all_knowing"]
    assert document["setup"]["slo"] == {"ttft_s": 1.0, "tpot_s": 0.05}
    assert (document["setup"]["block_size"], document["setup"]["kv_blocks"]) == (512, 400_000 // 512)
    assert document["trace"]["read_as"] == "mooncake, hashes of 512 tokens, times in ms"
    assert (document["trace"]["num_skipped"], document["trace"]["skipped"]) == (0, [])
    assert document["excluded"] == {
        "context_tokens": 399_872,
        "num_empty": 0,
        "num_rejected": 0,
        "num_truncated": 0,
    }
    assert "<svg" in drawn.read_text()


def test_the_default_policies_run_without_the_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl").path
    assert main(["replay", str(path), "--no-bounds", "--processes", "1", "--limit", "5"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    names = [row.split()[0] for row in rows]
    assert {"round_robin", "least_load", "prefix_overlap"} <= set(names) and "pooled" not in names


def test_a_policy_of_a_file_runs_beside_the_shipped_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = trace(tmp_path / "t.jsonl").path, tmp_path / "own.py"
    own.write_text("def choose(query, candidates, rng):\n    return rng.randrange(len(candidates))\n")
    arguments = [
        "replay",
        str(path),
        "--policy-file",
        str(own),
        "--no-bounds",
        "--processes",
        "1",
        "--limit",
        "5",
    ]
    assert main(arguments) == 0
    names = [row.split()[0] for row in capsys.readouterr().out.splitlines()[2:]]
    assert set(names) == {"own", "expected_ttft", "least_load", "prefix_overlap", "round_robin"}


TWO = """
class One:
    name = "one"
    def choose(self, query, candidates, rng):
        return 0

class Other(One):
    name = "other"
"""


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ["one", "other", "expected_ttft", "least_load", "prefix_overlap", "round_robin"]),
        (["--policy", "other"], ["other"]),
        (["--policy", "round_robin"], ["round_robin"]),
    ],
    ids=["all", "own", "shipped"],
)
def test_a_file_of_several_policies_gives_a_row_each_unless_some_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], names: list[str]
) -> None:
    path, own = trace(tmp_path / "t.jsonl").path, tmp_path / "own.py"
    own.write_text(TWO)
    arguments = ["replay", str(path), "--policy-file", str(own), "--no-bounds", "--processes", "1"]
    assert main([*arguments, "--limit", "5", *given]) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[2:]] == names


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["missing.jsonl"], "missing.jsonl: cannot be read"),
        (["t.jsonl", "--policy", "best"], "--policy best: not one of all_knowing, "),
        (["t.jsonl", "--profile", "h200"], "--profile h200: give one of"),
        (["t.jsonl", "--format", "azure"], "t.jsonl:1: no TIMESTAMP"),
        (["t.jsonl", "--tokenizer", "/nowhere"], "--tokenizer /nowhere: no tokenizer.json there"),
        (["t.jsonl", "--json", "no/where"], "no/where: cannot be written"),
        (["t.jsonl", "--rate", "2"], "--rate: t.jsonl has times"),
        (["t.jsonl", "--trace-block-size", "16"], "--trace-block-size 16 fits 0 of 3 requests"),
    ],
)
def test_a_mistake_is_an_error_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    why: str,
) -> None:
    trace(tmp_path / "t.jsonl")
    monkeypatch.chdir(tmp_path)
    policy = [] if "--policy" in arguments else ["--policy", "round_robin"]
    assert main(["replay", *arguments, *policy, "--no-bounds", "--limit", "3"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    ["--speed=0", "--speed=-1", "--speed=inf", "--speed=nan", "--workers=0", "--workers=1000000",
     "--event-delay-s=-1", "--event-delay-s=inf", "--slo-ttft-s=nan", "--slo-tpot-s=inf", "--limit=x",
     "--slo-ttft-s=0s", "--event-delay-s=5 min"],
)  # fmt: skip
def test_numbers_are_bounded(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["replay", "t.jsonl", option])
    assert exited.value.code == 2 and option.split("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--picture"])
@pytest.mark.parametrize("bad", ["no/where", "."])
def test_a_file_that_cannot_be_written_is_found_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, bad: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "missing.jsonl", option, bad]) == 2
    assert f"kvgate: {bad}: cannot be written" in capsys.readouterr().err


def test_a_failed_run_leaves_no_empty_file(tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "missing.jsonl"), "--json", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_requests_that_were_excluded_are_named_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl").path
    path.write_text(
        path.read_text() + '\n{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}'
        '\n{"timestamp": 1, "input_length": 3072, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5, 6]}'
        '\n{"timestamp": 1, "input_length": 3070, "output_length": 9, "hash_ids": [1, 2, 3, 4, 5, 6]}'
    )
    arguments = ["--policy", "round_robin", "--no-bounds", "--processes", "1", "--kv-blocks", "6"]
    assert main(["replay", str(path), *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "excluded: 1 with an empty prompt (line 41)",
        "rejected: 1 with a prompt that leaves no room for an answer in the 3,072 tokens of a cache",
        "truncated: 1 with an answer that reaches the 3,072 tokens of a cache",
    ]


def test_a_strict_replay_refuses_an_empty_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl").path
    path.write_text(path.read_text() + '\n{"timestamp": 1, "input_length": 0, "output_length": 1}')
    assert main(["replay", str(path), "--strict", "--policy", "round_robin", "--no-bounds"]) == 2
    assert capsys.readouterr().err.endswith("t.jsonl:41: the prompt is empty\n")


def test_broken_rows_are_skipped_and_named_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl").path
    path.write_text('{"timestamp"\n' + path.read_text() + "\n[]\n7\nx\n" + '{"timestamp": 20000, "inp')
    arguments = ["replay", str(path), "--policy", "round_robin", "--no-bounds", "--processes", "1"]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    heading, *_, note = capsys.readouterr().out.splitlines()
    assert "40 requests" in heading
    assert note.startswith("skipped: 5 that cannot be read (line 1: ") and "line 42: " in note
    assert note.endswith("; and 2 more)")
    assert json.loads((tmp_path / "out.json").read_text())["trace"]["num_skipped"] == 5
    assert main([*arguments, "--strict"]) == 2
    assert f"{path}:1: " in capsys.readouterr().err


def test_the_reading_of_a_trace_can_be_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl").path
    arguments = ["replay", str(path), "--policy", "round_robin", "--no-bounds", "--processes", "1"]
    assert main([*arguments, "--trace-unit", "s", "--trace-block-size", "600"]) == 0
    assert "; read as mooncake, hashes of 600 tokens, times in s" in capsys.readouterr().out
    path.write_text('{"prompt": "hello", "max_tokens": 4}\n' * 9)
    assert main([*arguments, "--rate", "3"]) == 0
    assert "; read as chat, texts, no times (played at 3/s)" in capsys.readouterr().out


def test_the_formats_are_listed_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["replay", "--formats"])
    assert exited.value.code == 0 and "burstgpt" in capsys.readouterr().out


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the learning of speeds; `test_calibration.py` covers its quality."""
    monkeypatch.setattr(calibration, "MAX_LEARNT", 24)
    monkeypatch.setattr(calibration, "MAX_MOVES", 5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_recording_reports_measured_values_and_the_error_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "r.jsonl")
    reported = tmp_path / "out.json"
    arguments = [
        "replay",
        str(tmp_path / "r.jsonl"),
        "--policy",
        "round_robin",
        "--no-bounds",
        "--processes",
        "1",
    ]
    assert main([*arguments, "--kv-blocks", "1250", "--json", str(reported)]) == 0
    heading, _, measured, replayed, speeds, error = capsys.readouterr().out.splitlines()
    assert "2 workers learnt" in heading and speeds.startswith("learnt: ")
    assert (measured.split()[0], replayed.split()[0]) == ("measured", "round_robin")
    assert float(measured.split()[1]) == pytest.approx(float(replayed.split()[1]), abs=0.02)
    assert error.startswith("calibration, round_robin at 1x: hit rate 0.") and "TTFT p90" in error
    document = json.loads(reported.read_text())
    assert [row["policy"] for row in document["rows"]] == ["measured", "round_robin"]
    assert [each["name"] for each in document["calibration"]["errors"]] == [
        "hit rate",
        "TTFT p50",
        "TTFT p90",
    ]
    assert main([*arguments, "--profile", "h100-8b", "--speed", "2"]) == 0
    heading, *_ = capsys.readouterr().out.splitlines()
    assert "at 2x, 2 workers h100-8b" in heading


@pytest.mark.usefixtures("quick")
def test_a_recording_is_played_on_another_number_of_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "r.jsonl")
    policy = ["--policy", "round_robin", "--no-bounds", "--processes", "1"]
    assert main(["replay", str(tmp_path / "r.jsonl"), *policy, "--workers", "3"]) == 0
    heading, *rest = capsys.readouterr().out.splitlines()
    assert "3 workers learnt" in heading and rest[-1].startswith("calibration, round_robin at 1x")


def test_a_recording_of_an_unknown_policy_is_played_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "r.jsonl")
    path = tmp_path / "r.jsonl"
    path.write_text(path.read_text().replace('"round_robin"', '"mine"'))
    assert main(["replay", str(path), "--policy", "least_load", "--no-bounds", "--processes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("not calibrated: unknown policy mine")
