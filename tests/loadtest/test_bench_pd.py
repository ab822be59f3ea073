"""The figures of `make bench-pd` in virtual time, from a trace of a few requests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest import bench_pd
from loadtest.report import Figure
from loadtest.workloads.small_traces import conversations, sessions, write


def play(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    conversation: Sequence[dict[str, Any]],
    agents: Sequence[dict[str, Any]],
) -> None:
    """Shortened traces in place of the real ones."""
    for name, lines in (("CONVERSATION", conversation), ("AGENT", agents)):
        path = directory / f"{name}.jsonl.xz"
        write(path, lines)
        monkeypatch.setattr(bench_pd, name, path)


@pytest.mark.slow
def test_each_trace_is_played_in_each_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, tmp_path, conversations(8), sessions(4))
    published: list[Figure] = []
    monkeypatch.setattr(bench_pd, "LIMIT", 16)
    monkeypatch.setattr(bench_pd, "publish", lambda bench, figures: published.extend(figures))
    bench_pd.main()
    traces = ("conversation_8b", "conversation_70b", "agent_8b", "agent_70b")
    assert [figure.name for figure in published] == [
        name
        for trace in traces
        for name in (
            f"pd.goodput_auto_over_best.{trace}",
            f"pd.goodput_auto_over_best.{trace}.roles",
            f"pd.goodput_roles_over_both.{trace}",
            f"pd.turn2_ttft_auto_over_always.{trace}",
        )
    ]
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    split = {(fleet, mode, float(share)) for fleet, mode, *_, share, _ in rows}
    assert len(rows) == 6 * len(traces)
    assert {share for _, mode, share in split if mode == "never"} == {0.0}
    assert {share for fleet, mode, share in split if (fleet, mode) == ("roles", "always")} == {1.0}
    assert all(figure.value > 0 for figure in published)
    assert [figure.is_floor for figure in published] == [True, True, True, False] * len(traces)


def test_a_trace_without_second_turns_is_too_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, tmp_path, conversations(8), sessions(4))
    monkeypatch.setattr(bench_pd, "LIMIT", 1)
    with pytest.raises(SystemExit, match="none of 1 requests is a second turn"):
        bench_pd.main()
