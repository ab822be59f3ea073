import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.formats.reading import TraceOptions
from gateway.replay.job import HashedPrompt
from gateway.replay.traces import agent, mooncake, read


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def encode(text: str) -> list[int]:
    return list(text.encode())


def asked(timestamp: int, length: int, hashes: list[int]) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": 3, "hash_ids": hashes}


def test_mooncake_prompts_are_equal_where_their_hashes_are(tmp_path: Path) -> None:
    rows = [asked(0, 1500, [0, 1, 2]), asked(6000, 2000, [0, 1, 5, 6]), asked(9000, 3000, [0, 1, 5, 6, 7, 8])]
    first, second, third = mooncake(write(tmp_path / "t.xz", rows), speed=2.0)
    assert [len(job.tokens()) for job in (first, second, third)] == [1500, 2000, 3000]
    assert first.tokens()[:1024] == second.tokens()[:1024] and first.tokens()[1024] != second.tokens()[1024]
    assert second.tokens() == third.tokens()[:2000]
    assert [job.at for job in (first, second, third)] == [0.0, 3.0, 4.5]
    assert isinstance(first.prompt, HashedPrompt)


def test_the_number_of_requests_is_limited(tmp_path: Path) -> None:
    path = write(tmp_path / "t.xz", [asked(0, 600, [0, 1])] * 5)
    assert len(list(mooncake(path, limit=3))) == 3


TURNS = [
    {"session_id": "a", "timestamp": 1.7e15, "input": "hello", "output": " you"},
    {"session_id": "a", "timestamp": 1.7e15 + 4e6, "input": "hello you there", "output": ""},
]


def test_turns_of_a_session_continue_each_other(tmp_path: Path) -> None:
    first, second = read(write(tmp_path / "t.xz", TURNS), TraceOptions(speed=2.0, encode=encode)).jobs
    assert (first.at, second.at, first.turn, second.turn) == (0.0, pytest.approx(2.0), 1, 2)
    assert second.tokens()[: first.num_tokens] == first.tokens() and list(first.output) == list(b" you")
    assert second.num_output == 1 and first.session == second.session == "a"


def test_turns_without_times_come_one_per_second(tmp_path: Path) -> None:
    rows = [{"session": "a", "input": "x", "output": "y"}, {"input": "x"}]
    jobs = read(write(tmp_path / "t.xz", rows), TraceOptions(encode=encode)).jobs
    assert [(job.at, job.session) for job in jobs] == [(0.0, "a"), (1.0, None)]


def test_copies_of_sessions_share_nothing(tmp_path: Path) -> None:
    jobs = agent(write(tmp_path / "t.xz", TURNS), encode, copies=2)
    assert len(jobs) == 4
    assert {(job.session, job.tokens()[0]) for job in jobs} == {("a/0", 0), ("a/1", 1)}


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2024-05-10 00:00:00.009930+00:00,3180,0
"""


def test_azure_prompts_have_a_length_only(tmp_path: Path) -> None:
    """Clocks of both years are read."""
    (tmp_path / "t.csv").write_text(AZURE.replace("\n", "\r\n"))
    first, second = read(tmp_path / "t.csv", TraceOptions()).jobs
    assert (first.num_tokens, first.num_output, second.num_tokens, second.num_output) == (4808, 10, 3180, 1)
    assert len(first.tokens()) == 4808 and first.tokens()[:16] != second.tokens()[:16]


BAD = [
    ("t.csv", AZURE + "2023-11-16 18:17:04,x,1\n", r"t\.csv:4: no number of tokens: .*x"),
    ("t.csv", AZURE + "yesterday,1,1\n", r"t\.csv:4: no time: .*yesterday"),
    ("t.csv", "a,b\n", r"t\.csv:1: neither JSON nor"),
    ("t.jsonl", "{}\n", r"t\.jsonl:1: unknown format"),
    ("t.jsonl", "[1]\n", r"t\.jsonl: item 1: unknown format"),
    (
        "t.jsonl",
        json.dumps(asked(0, 600, [1])) + "\n",
        r"t\.jsonl:1: 1 hash_ids of 512 tokens do not hold 600",
    ),
    ("t.jsonl", json.dumps(asked(0, 9, [-1])) + "\n", r"t\.jsonl:1: "),
    ("t.jsonl", json.dumps(asked(0, 9, [2**64])) + "\n", r"t\.jsonl:1: hash_ids must be from 0 to 2\^64 - 1"),
    ("t.jsonl", json.dumps(asked(0, 9, [10**30])) + "\n", r"t\.jsonl:1: hash_ids must be"),
    ("t.jsonl", json.dumps(asked(0, -9, [1])) + "\n", r"t\.jsonl:1: "),
    ("t.jsonl", json.dumps(asked(0, 9, [1]) | {"output_length": -1}), r"t\.jsonl:1: tokens .* 9 and -1"),
    ("t.jsonl", json.dumps(asked(0, 9, [1]) | {"output_length": 1 << 40}), r"t\.jsonl:1: tokens must be"),
    (
        "t.jsonl",
        json.dumps(asked(0, 9, [1]) | {"timestamp": 1e300}),
        r"t\.jsonl:1: timestamp of 1e\+300 is beyond",
    ),
    ("t.jsonl", '{"input": "x", "timestamp": -1e300}', r"t\.jsonl:1: timestamp of -1e\+300 is beyond"),
    ("t.jsonl", '{"input": "x", "timestamp": 0}\n{"input": "x", "timestamp": 1e19}', r"spans 1e\+10 s"),
    ("t.csv", AZURE + "2023-11-16 18:17:04,-1,1\n", r"t\.csv:4: tokens must be from 0 .* not -1 and 1"),
    ("t.csv", AZURE + "2023-11-16 18:17:04,1,-1\n", r"t\.csv:4: tokens must be"),
    ("t.csv", AZURE + "0001-01-01 00:00:00,1,1\n", r"t\.csv:4: no time: .* is before 1970"),
    ("t.jsonl", json.dumps(asked(0, 0, [])) + "\n", r"t\.jsonl:1: the prompt is empty"),
    ("t.jsonl", '{"input": ""}\n', r"t\.jsonl:1: the prompt is empty"),
    ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
]


@pytest.mark.parametrize(("name", "text", "why"), BAD)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=why):
        read(tmp_path / name, TraceOptions(encode=encode))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", AZURE + "2023-11-16 18:17:03.9799600,0,7\n"),
        ("t.jsonl", '{"input": ""}\n{"input": "a"}\n{"input": "b"}\n'),
        ("t.jsonl", "\n".join(json.dumps(asked(0, length, [1])) for length in (9, 0, 9))),
    ],
)
def test_an_empty_prompt_is_left_out_and_counted(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read(tmp_path / name, TraceOptions(encode=encode, is_strict=False))
    assert (len(found.jobs), found.num_empty, len(found.empty)) == (2, 1, 1)
    with pytest.raises(ConfigError, match=f"{found.empty[0].split()[1]}: the prompt is empty"):
        read(tmp_path / name, TraceOptions(encode=encode))


def test_a_trace_of_empty_prompts_has_no_requests(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"input": ""}\n')
    with pytest.raises(ConfigError, match=r"has no requests \(prompts of 1 are empty\)"):
        read(tmp_path / "t.jsonl", TraceOptions(encode=encode, is_strict=False))


def test_requests_of_a_coarse_clock_are_spread_over_its_moments_in_order(tmp_path: Path) -> None:
    """The resolution of 3 s shows in times that are all multiples of it, and shared."""
    rows = [asked(at, 600, [at, number]) for at in (0, 2999, 9000) for number in range(20)]
    path = write(tmp_path / "t.xz", rows)
    first, again, other = ([job.at for job in mooncake(path, seed=seed)] for seed in (1, 1, 2))
    assert first == again != other and first == sorted(first) and len(set(first)) == 60
    hashes = [job.prompt.hashes[1] for job in mooncake(path) if isinstance(job.prompt, HashedPrompt)]
    assert hashes == [*range(20)] * 3
    assert all(later - early < 3 for early, later in zip(first[::20], first[19::20], strict=True))


def test_times_of_a_finer_clock_are_kept(tmp_path: Path) -> None:
    """A turn that came 5 ms after the one before stays behind it."""
    rows = [asked(at, 600, [1, 2]) for at in (0, 0, 5, 3000)]
    assert [job.at for job in mooncake(write(tmp_path / "t.xz", rows))] == [0.0, 0.0, 0.005, 3.0]


def test_a_burst_of_one_moment_stays_one(tmp_path: Path) -> None:
    assert {job.at for job in mooncake(write(tmp_path / "t.xz", [asked(6000, 600, [1, 2])] * 5))} == {0.0}


def test_a_trace_with_texts_requires_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        read(write(tmp_path / "t.xz", TURNS), TraceOptions())


def test_models_get_new_names_by_their_order(tmp_path: Path) -> None:
    """A trace's own names never reach the gateway; a request without one is of a model of its own."""
    rows = [asked(at, 600, [1, 2]) | name for at, name in enumerate(({"model": "\n"}, {}, {"model": "\n"}))]
    assert [job.model for job in mooncake(write(tmp_path / "t.xz", rows))] == ["m", "m1", "m"]
    turns = [TURNS[0] | {"model": "b"}, TURNS[1] | {"model": "a"}]
    both = read(write(tmp_path / "t.xz", turns), TraceOptions(encode=encode)).jobs
    assert [job.model for job in both] == ["m", "m1"]
