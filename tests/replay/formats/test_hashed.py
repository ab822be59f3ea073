import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.job import HashedPrompt, ReplayJob
from gateway.replay.traces import Requests, read


def trace(path: Path, rows: list[dict[str, Any]], **options: Any) -> Requests:
    path.write_text("\n".join(map(json.dumps, rows)))
    return read(path, TraceOptions(**options))


def row(number: int, length: int, size: int, unit: float = 1e3, **more: Any) -> dict[str, Any]:
    """Request with a common first block, and blocks of its own behind it."""
    num = -(-length // size)
    hashes = [0, *(1000 * number + i for i in range(1, num))][:num]
    return {
        "timestamp": number * 2 * unit,
        "input_length": length,
        "output_length": 5,
        "hash_ids": hashes,
    } | more


def size_of(job: ReplayJob) -> int:
    assert isinstance(job.prompt, HashedPrompt)
    return job.prompt.block_size


LENGTHS = (900, 1500, 77, 2000)


@pytest.mark.parametrize("size", [16, 64, 512])
@pytest.mark.parametrize(("unit", "ticks"), [("s", 1.0), ("ms", 1e3), ("us", 1e6)])
def test_a_trace_is_read_by_its_own_blocks_and_unit(
    tmp_path: Path, size: int, unit: str, ticks: float
) -> None:
    found = trace(tmp_path / "t.jsonl", [row(i, n, size, ticks) for i, n in enumerate(LENGTHS)])
    assert [round(job.at, 3) for job in found.jobs] == [0, 2, 4, 6]
    assert {size_of(job) for job in found.jobs} == {size}
    assert [len(job.tokens()) for job in found.jobs] == list(LENGTHS)
    first, second = found.jobs[0].tokens(), found.jobs[1].tokens()
    assert first[:size] == second[:size] and first[size : size + 2] != second[size : size + 2]
    assert found.read_as == f"mooncake, hashes of {size} tokens, times in {unit}"


def test_a_trace_of_chats_has_seconds_and_conversations(tmp_path: Path) -> None:
    rows = [
        row(0, 160, 16, 15.0, chat_id=5, parent_chat_id=-1, turn=1),
        row(1, 160, 16, 15.0, chat_id=6, parent_chat_id=5, turn=2),
        row(2, 160, 16, 15.0, chat_id=7, parent_chat_id=6, turn=3),
        row(3, 160, 16, 15.0, chat_id=8, parent_chat_id=-1, turn=1),
    ]
    found = trace(tmp_path / "t.jsonl", rows)
    assert found.read_as == "qwen, hashes of 16 tokens, times in s"
    assert [job.at for job in found.jobs] == [0, 30, 60, 90]
    assert [job.session for job in found.jobs] == ["5", "5", "5", "8"]


def test_hashes_of_full_blocks_alone_leave_the_end_of_a_prompt_to_itself(tmp_path: Path) -> None:
    rows = [row(i, 100, 16) for i in range(4)]
    for each in rows:
        each["hash_ids"] = [1, 2, 3, 4, 5, 6]
    first, second, *_ = trace(tmp_path / "t.jsonl", rows).jobs
    assert len(first.tokens()) == len(second.tokens()) == 100
    assert first.tokens()[:96] == second.tokens()[:96] and first.tokens()[96:] != second.tokens()[96:]


def test_hashes_of_the_answer_are_no_part_of_the_prompt(tmp_path: Path) -> None:
    rows = [row(i, 100, 16) | {"output_length": 60} for i in range(4)]
    for each in rows:
        each["hash_ids"] = list(range(10))
    assert [len(job.tokens()) for job in trace(tmp_path / "t.jsonl", rows).jobs] == [100] * 4


def test_block_size_and_unit_can_be_forced(tmp_path: Path) -> None:
    rows = [row(i, 100, 100) for i in range(3)]
    found = trace(tmp_path / "t.jsonl", rows, block_size=100, ticks_per_s=1.0)
    assert found.read_as == "mooncake, hashes of 100 tokens, times in s"
    assert [job.at for job in found.jobs] == [0, 2000, 4000]
    with pytest.raises(ConfigError, match="--trace-block-size 40 fits 0 of 3 requests"):
        trace(tmp_path / "t.jsonl", rows, block_size=40)


def test_hashes_without_a_common_block_size_are_refused(tmp_path: Path) -> None:
    rows = [row(i, 1000, size) for i, size in enumerate((16, 300, 50, 100))]
    with pytest.raises(ConfigError, match=r"t\.jsonl:4: hash_ids have no common block size"):
        trace(tmp_path / "t.jsonl", rows, is_strict=False)


def test_a_row_that_does_not_fit_the_others_is_skipped(tmp_path: Path) -> None:
    rows = [row(i, 1000, 16) for i in range(20)]
    rows[7]["hash_ids"] = [1, 2]
    found = trace(tmp_path / "t.jsonl", rows, is_strict=False)
    assert (len(found.jobs), found.num_skipped) == (19, 1)
    assert found.skipped == ("line 8: 2 hash_ids of 16 tokens do not hold 1000",)


def test_sessions_of_aiperf_continue_after_their_delay(tmp_path: Path) -> None:
    rows = [
        row(0, 600, 512, session_id="a"),
        {"session_id": "a", "delay": 4000, "input_length": 600, "output_length": 2, "hash_ids": [0, 9]},
        row(1, 600, 512),
    ]
    found = trace(tmp_path / "t.jsonl", rows)
    assert [(job.at, job.session) for job in found.jobs] == [(0, "a"), (2, None), (4, "a")]


def test_rows_without_hashes_have_lengths_only(tmp_path: Path) -> None:
    rows = [{"timestamp": 500 * i, "input_length": 600, "output_length": 2} for i in range(3)]
    first, second, _ = trace(tmp_path / "t.jsonl", rows).jobs
    assert first.num_tokens == 600 and first.tokens()[:16] != second.tokens()[:16]


def test_requests_without_times_come_at_the_rate(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row(i, 600, 512).items() if key != "timestamp"} for i in range(3)]
    found = trace(tmp_path / "t.jsonl", rows, rate=4.0)
    assert [job.at for job in found.jobs] == [0, 0.25, 0.5]
    assert found.read_as.endswith("no times (played at 4/s)")


def test_seconds_with_fractions_are_no_milliseconds(tmp_path: Path) -> None:
    """Whole numbers of a Mooncake trace are milliseconds, down to one between two requests."""
    rows = [row(i, 900, 512) | {"timestamp": 15.0 * i} for i in range(4)]
    assert [job.at for job in trace(tmp_path / "t.jsonl", rows).jobs] == [0, 15, 30, 45]
    rows = [each | {"timestamp": int(each["timestamp"])} for each in rows]
    assert [job.at for job in trace(tmp_path / "t.jsonl", rows).jobs] == [0, 0.015, 0.03, 0.045]


@pytest.mark.parametrize(("begin", "unit"), [(0.5, "s"), (0, "ms")])
def test_chats_have_seconds_where_some_have_fractions(tmp_path: Path, begin: float, unit: str) -> None:
    """Whole times of chats are read by their gaps, as those of any other trace."""
    rows = [row(i, 16 * i + 40, 16, timestamp=begin + 100 * i, chat_id=i) for i in range(9)]
    assert trace(tmp_path / "t.jsonl", rows).read_as == f"qwen, hashes of 16 tokens, times in {unit}"
