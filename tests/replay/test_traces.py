import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from gateway.replay.job import HashedPrompt
from gateway.replay.traces import MOMENT_S, agent, mooncake


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def asked(timestamp: int, length: int, hashes: list[int]) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": 3, "hash_ids": hashes}


def test_mooncake_prompts_are_equal_where_their_hashes_are(tmp_path: Path) -> None:
    rows = [asked(0, 1500, [0, 1, 2]), asked(6000, 2000, [0, 1, 5, 6]), asked(9000, 3000, [0, 1, 5, 6, 7, 8])]
    one, two, three = mooncake(write(tmp_path / "t.xz", rows), speed=2.0)
    assert [len(job.tokens()) for job in (one, two, three)] == [1500, 2000, 3000]
    assert one.tokens()[:1024] == two.tokens()[:1024] and one.tokens()[1024] != two.tokens()[1024]
    assert two.tokens() == three.tokens()[:2000]
    assert 3.0 <= two.at <= 3.0 + MOMENT_S / 2
    assert isinstance(one.prompt, HashedPrompt)


def test_as_many_as_are_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.xz", [asked(0, 600, [0, 1])] * 5)
    assert len(list(mooncake(path, limit=3))) == 3


def test_turns_of_a_session_go_on_from_each_other_and_copies_share_nothing(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1e6, "input": "hello", "output": " you"},
        {"session_id": "a", "timestamp": 5e6, "input": "hello you there", "output": ""},
    ]
    jobs = list(agent(write(tmp_path / "t.xz", rows), lambda text: list(text.encode()), copies=2))
    one, two, other, _ = jobs
    assert (one.at, two.at) == pytest.approx((0.0, 4.0))
    assert two.tokens()[: one.num_tokens] == one.tokens() and list(one.output) == list(b" you")
    assert two.num_output == 1
    assert other.tokens()[0] != one.tokens()[0] and other.session != one.session == two.session
