import json
from pathlib import Path
from typing import Any

import pytest

from gateway.replay.formats.reading import UNKNOWN_OUTPUT, TraceOptions
from gateway.replay.traces import Requests, read


def trace(path: Path, rows: Any, **options: Any) -> Requests:
    """A list is written as JSON lines; a text as it is."""
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)))
    return read(path, TraceOptions(encode=lambda text: list(text.encode()), **options))


def shared(name: str, num_turns: int) -> dict[str, Any]:
    said = [
        {"from": ("human", "gpt")[i % 2], "value": f"{name} says {i} and more"} for i in range(2 * num_turns)
    ]
    return {"id": name, "conversations": said}


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_shared_conversations_is_read(tmp_path: Path, indent: int | None) -> None:
    found = trace(tmp_path / "t.json", json.dumps([shared("a", 2), shared("b", 1)], indent=indent), rate=0.1)
    assert [(job.session, job.turn, job.at) for job in found.jobs] == [
        ("a", 1, 0),
        ("a", 2, 10),
        ("b", 1, 20),
    ]
    first, second, _ = found.jobs
    assert list(second.tokens())[: first.num_tokens] == list(first.tokens())
    assert found.read_as == "sharegpt, texts, no times (played at 0.1/s)"


def test_a_cut_array_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    text = json.dumps([shared("a", 1), shared("b", 1)])[:-9]
    found = trace(tmp_path / "t.json", text, is_strict=False)
    assert len(found.jobs) == 1 and found.skipped[0].startswith("item 2: JSON ends within a value")


def test_conversations_without_times_are_dealt_out_with_pauses(tmp_path: Path) -> None:
    """At two requests per second twenty are open, so that a turn comes ten seconds after the one before."""
    found = trace(tmp_path / "t.jsonl", [shared(str(i), 3) for i in range(40)], rate=2.0)
    assert [job.at for job in found.jobs] == [i / 2 for i in range(120)]
    turns = [job for job in found.jobs if job.session == "0"]
    assert [job.at for job in turns] == [0, 10, 20]
    for name in {job.session for job in found.jobs}:
        assert [job.turn for job in found.jobs if job.session == name] == [1, 2, 3]


def test_conversations_of_arenas_have_models_and_times(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    rows = [
        {"conversation_id": "x", "model": "v", "conversation": said, "timestamp": "2023-04-09T00:00:00"},
        {"conversation_id": "y", "model": "w", "conversation": said, "timestamp": "2023-04-09T00:00:03"},
    ]
    found = trace(tmp_path / "t.jsonl", rows)
    assert found.read_as == "lmsys, texts, ISO times"
    assert [(job.session, job.at, job.model) for job in found.jobs] == [
        ("x", 0, "m"),
        ("y", 3, "m1"),
        ("x", 10, "m"),
        ("y", 13, "m1"),
    ]


def test_workloads_have_several_requests_a_moment(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "requests": [{"prompt": "a", "prompt_length": 1, "output_length": 7}]},
        {
            "timestamp": 1500,
            "requests": [
                {"prompt": "hello", "prompt_length": 1, "output_length": None, "session_id": 0},
                {"prompt": None, "prompt_length": 900, "output_length": 3},
            ],
        },
        {"timestamp": 3000, "requests": [{"prompt": "more", "session_id": 0}]},
    ]
    found = trace(tmp_path / "t.jsonl", rows)
    assert found.read_as == "aibrix, texts, times in ms"
    assert [(job.at, job.num_output) for job in found.jobs] == [
        (0, 7),
        (1.5, UNKNOWN_OUTPUT),
        (1.5, 3),
        (3, UNKNOWN_OUTPUT),
    ]
    _, first, lengths, second = found.jobs
    assert lengths.num_tokens == 900
    assert list(second.tokens())[: first.num_tokens] == list(first.tokens())


def test_prompts_and_sessions_of_aiperf_are_read(tmp_path: Path) -> None:
    rows = [
        {"text_input": "one", "output_length": 20, "timestamp": 0},
        {"input_text": "two", "timestamp": 2000},
        {"session_id": "s", "turns": [{"text": "a"}, {"texts": ["b", "c"]}], "timestamp": 4000},
    ]
    found = trace(tmp_path / "t.jsonl", rows)
    assert found.read_as == "aiperf, texts, times in ms"
    assert [(job.at, job.num_output, job.session) for job in found.jobs] == [
        (0, 20, None),
        (2, UNKNOWN_OUTPUT, None),
        (4, UNKNOWN_OUTPUT, "s"),
        (14, UNKNOWN_OUTPUT, "s"),
    ]


def test_conversations_without_messages_are_counted(tmp_path: Path) -> None:
    rows = [shared("a", 1), {"id": "b", "conversations": []}, {"id": "c", "conversations": "x"}]
    found = trace(tmp_path / "t.jsonl", rows, is_strict=False)
    assert (len(found.jobs), found.num_empty, found.num_skipped) == (1, 1, 1)


def test_each_request_of_a_moment_stands_alone(tmp_path: Path) -> None:
    """An empty prompt leaves the others of its moment; a moment without requests is no mistake."""
    asked = [
        {"prompt": "a", "output_length": 5},
        {"prompt": ""},
        {"Prompt Length": 10, "Output Length": 7},
        {"prompt": [{"role": "user", "content": "a"}], "output_length": 5},
    ]
    rows = [{"timestamp": 0, "requests": asked}, {"timestamp": 1000, "requests": []}]
    found = trace(tmp_path / "t.jsonl", rows, is_strict=False)
    assert [job.num_output for job in found.jobs] == [5, 7, 5] and found.jobs[1].num_tokens == 10
    assert list(found.jobs[0].tokens()) == list(found.jobs[2].tokens())
    assert (found.num_empty, found.empty) == (1, ("line 1",))


def test_a_session_begins_at_the_time_of_its_first_turn(tmp_path: Path) -> None:
    media = [{"name": "text", "contents": ["a"]}]
    rows = [
        {"session_id": "a", "turns": [{"timestamp": 0, "text": "a"}]},
        {"session_id": "b", "turns": [{"timestamp": 4000, "texts": media}, {"delay": 5, "text": "b"}]},
    ]
    first, second, third = trace(tmp_path / "t.jsonl", rows).jobs
    assert (first.at, second.at) == (0, 4) and list(first.tokens()) == list(second.tokens())
    assert third.turn == 2
