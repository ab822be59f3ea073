"""Recorder: a line per request that ended, without waiting for the disk."""

import json
import stat
from array import array
from pathlib import Path

import pytest

import gateway.observability.recorder
from gateway import request
from gateway.config import config_of
from gateway.core.blocks import tokens_of
from gateway.core.decision import Decided, Decision, Prompt
from gateway.core.errors import ConfigError
from gateway.core.outcome import Outcome
from gateway.core.usage_reading import read_usage
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.recorder import Recorder, hashed, recorder_of
from gateway.observability.recording import Recorded
from gateway.replay.line_reader import Lines
from tests.support.fakes import decision

USAGE = read_usage(
    b'{"usage":{"prompt_tokens":40,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":32}}}'
)


def recorder(
    path: Path, metrics: Metrics | None = None, max_bytes: int = 1 << 20, **fields: bool
) -> Recorder:
    return Recorder(path, metrics or Metrics(), max_bytes=max_bytes, **fields)


def see(observer: Recorder, made: Decision, session: str | None = "alice", blocks: int = 2) -> None:
    body = {"model": "m", "prompt": "x"} | ({"user": session} if session else {})
    prompt = Prompt((tokens_of(range(40)),), "ids")
    hashes = [[2**63 + i for i in range(blocks)]]
    observer.decided(Decided(made, prompt, hashes, request("/v1/completions", body)))  # type: ignore[arg-type]


def lines(path: Path) -> list[Recorded]:
    return list(Lines(path).decoded(Recorded))


def test_a_line_has_the_fields_of_a_replay_and_no_prompt(tmp_path: Path) -> None:
    observer, path = recorder(tmp_path / "r.jsonl"), tmp_path / "r.jsonl"
    made = decision("d1", "a:1", "b:1")
    see(observer, made)
    observer.finished(made, Outcome("ended", 200, 0.25, USAGE, 1.5))
    observer.close()
    (line,) = lines(path)
    assert (line.worker, line.policy, line.status, line.result) == ("a:1", "p", 200, "ended")
    assert (
        line.prompt_tokens,
        line.output_tokens,
        line.reported_cached_tokens,
        line.predicted_cached_tokens,
    ) == (40, 7, 32, 64)
    assert (line.ttft_s, line.total_s, line.session) == (0.25, 1.5, hashed("alice"))
    assert array("Q", line.blocks).tolist() == [2**63, 2**63 + 1]
    assert b"alice" not in path.read_bytes() and "tokens" not in json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tokens_are_recorded_where_enabled(tmp_path: Path) -> None:
    observer = recorder(tmp_path / "r.jsonl", keeps_tokens=True)
    made = decision("d1", "a:1")
    see(observer, made, session=None)
    observer.finished(made, Outcome("aborted", 200, None, None, 1.5))
    observer.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert array("I", line.tokens) == tokens_of(range(40))
    assert (line.session, line.output_tokens, line.prompt_tokens) == (None, None, 100)


def test_a_failed_attempt_is_not_recorded_as_the_end(tmp_path: Path) -> None:
    observer = recorder(tmp_path / "r.jsonl")
    first, second = decision("d1", "a:1"), decision("d2", "b:1")
    see(observer, first)
    observer.finished(first, Outcome("failed", 0, None, None, None))
    see(observer, second)
    observer.finished(second, Outcome("ended", 200, 0.1, USAGE, 0.2))
    observer.finished(first, Outcome("failed", 502, None, None, 0.3))
    observer.close()
    assert [(line.worker, line.result, len(line.blocks)) for line in lines(tmp_path / "r.jsonl")] == [
        ("b:1", "ended", 16),
        ("a:1", "failed", 0),
    ]


def test_the_file_is_bounded_and_lost_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    observer = recorder(tmp_path / "r.jsonl", metrics, max_bytes=1000)
    for i in range(20):
        made = decision(f"d{i}", "a:1")
        see(observer, made)
        observer.finished(made, Outcome("ended", 200, 0.25, USAGE, 1.5))
    observer.close()
    num = len(lines(tmp_path / "r.jsonl"))
    assert 0 < num < 20 and (tmp_path / "r.jsonl").stat().st_size <= 1000
    assert (metrics.num_recorded, metrics.num_unwritten) == (num, 20 - num)
    assert caplog.text.count("its size limit") == 1


def test_processes_append_to_one_file_within_one_bound(tmp_path: Path) -> None:
    ones = [recorder(tmp_path / "r.jsonl", max_bytes=1000) for _ in range(3)]
    for i in range(12):
        made = decision(f"d{i}", "a:1")
        see(ones[i % 3], made)
        ones[i % 3].finished(made, Outcome("ended", 200, 0.25, USAGE, 1.5))
    for observer in ones:
        observer.close()
    assert 0 < len(lines(tmp_path / "r.jsonl")) < 12


def test_requests_beyond_the_queue_are_counted_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.observability.recorder, "MAX_QUEUED_BYTES", 1000)
    metrics = Metrics()
    observer = recorder(tmp_path / "r.jsonl", metrics)
    large, small = decision("d1", "a:1"), decision("d2", "a:1")
    see(observer, large, blocks=200)
    observer.finished(large, Outcome("ended", 200, 0.25, USAGE, 1.5))
    see(observer, small)
    observer.finished(small, Outcome("ended", 200, 0.25, USAGE, 1.5))
    observer.close()
    assert (metrics.num_unqueued, metrics.num_recorded) == (1, 1)


def test_a_removed_file_drops_lines_and_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "there").mkdir()
    metrics = Metrics()
    observer = recorder(tmp_path / "there" / "r.jsonl", metrics)
    (tmp_path / "there" / "r.jsonl").unlink()
    (tmp_path / "there").rmdir()
    made = decision("d1", "a:1")
    see(observer, made)
    observer.finished(made, Outcome("ended", 200, 0.25, USAGE, 1.5))
    observer.close()
    assert (metrics.num_unwritten, metrics.num_recorded) == (1, 0) and "No such file" in caplog.text


def test_decisions_without_an_end_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.observability.recorder, "MAX_OPEN", 3)
    observer = recorder(tmp_path / "r.jsonl")
    for i in range(10):
        see(observer, decision(f"d{i}", "a:1"))
    assert len(observer._known) == 3


def test_an_unwritable_path_is_rejected_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--record .*: No such file or directory"):
        recorder(tmp_path / "no" / "where")


@pytest.mark.parametrize("is_on", [True, False])
def test_a_disabled_recorder_observes_nothing(tmp_path: Path, is_on: bool) -> None:
    observers, path = Observers(), tmp_path / "r.jsonl"
    observer = recorder_of(config_of(record=str(path) if is_on else ""), Metrics(), observers)
    observes = (observer.decided in observers.decided, observer.finished in observers.finished, path.exists())
    assert observes == (is_on,) * 3
    observer.close()
