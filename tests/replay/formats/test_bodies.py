import json
from pathlib import Path
from typing import Any

import pytest

from gateway.replay.formats.reading import UNKNOWN_OUTPUT, TraceOptions
from gateway.replay.traces import Requests, read


def trace(path: Path, *rows: dict[str, Any], **options: Any) -> Requests:
    path.write_text("\n".join(map(json.dumps, rows)))
    return read(path, TraceOptions(encode=lambda text: list(text.encode()), **options))


ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river."}]
CHAT = {"model": "m", "messages": ASKED, "max_tokens": 20}
TEXT = b"system: Be brief.\nuser: Name a river.\nassistant: "


@pytest.mark.parametrize(
    ("row", "name", "num_output"),
    [
        (CHAT, "chat", 20),
        ({"messages": ASKED, "max_completion_tokens": 5}, "chat", 5),
        ({"messages": ASKED}, "chat", UNKNOWN_OUTPUT),
        ({"messages": ASKED[1:], "system": "Be brief.", "max_tokens": 3}, "chat", 3),
        ({"input": ASKED, "max_output_tokens": 4}, "chat", 4),
        ({"input": ASKED[1:], "instructions": "Be brief."}, "chat", UNKNOWN_OUTPUT),
        ({"input": "Name a river.", "instructions": "Be brief."}, "chat", UNKNOWN_OUTPUT),
        ({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}, "batch", 20),
        ({"startTime": 1.76e9, "messages": ASKED, "response": "The Po."}, "litellm", 7),
        ({"data": [{"session_id": "s", "payloads": [CHAT]}]}, "chat", 20),
    ],
    ids=["chat", "limit", "open", "anthropic", "responses", "instructions", "text", "batch", "log", "inputs"],
)
def test_a_body_is_a_request(tmp_path: Path, row: dict[str, Any], name: str, num_output: int) -> None:
    found = trace(tmp_path / "t.jsonl", row)
    (job,) = found.jobs
    assert found.read_as.split(",")[0] == name
    assert bytes(list(job.tokens())) == TEXT and job.num_output == num_output


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("one", [b"user: one\nassistant: "]),
        (["one", "two"], [b"user: one\nassistant: ", b"user: two\nassistant: "]),
        ([1, 2, 3], [b"\1\2\3assistant: "]),
        ([[1], [2]], [b"\1assistant: ", b"\2assistant: "]),
    ],
)
def test_prompts_of_completions_are_texts_or_tokens(tmp_path: Path, prompt: Any, texts: list[bytes]) -> None:
    found = trace(tmp_path / "t.jsonl", {"model": "m", "prompt": prompt, "max_tokens": 4})
    assert [bytes(list(job.tokens())) for job in found.jobs] == texts


def test_embedding_requests_have_no_answers(tmp_path: Path) -> None:
    rows = [
        {"custom_id": "a", "url": "/v1/embeddings", "body": {"model": "m", "input": given}}
        for given in ("one", ["two", "three"])
    ]
    found = trace(tmp_path / "t.jsonl", *rows)
    assert [job.num_output for job in found.jobs] == [1, 1, 1]
    assert bytes(list(found.jobs[2].tokens())) == b"user: three\nassistant: "


def test_a_chat_with_its_answers_is_a_conversation(tmp_path: Path) -> None:
    said = [*ASKED, {"role": "assistant", "content": "The Po."}]
    found = trace(tmp_path / "t.jsonl", {"messages": [*said, *said[1:]]}, {"messages": ASKED})
    assert [(job.turn, bytes(list(job.output))) for job in found.jobs] == [
        (1, b"The Po."),
        (1, b""),
        (2, b"The Po."),
    ]


def test_tools_stand_before_the_messages(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    (job,) = trace(tmp_path / "t.jsonl", CHAT | {"tools": tools}).jobs
    assert bytes(list(job.tokens())).startswith(b"system: ") and b'"name":"f"' in bytes(list(job.tokens()))


def test_prompts_of_a_session_are_a_conversation(tmp_path: Path) -> None:
    row = {"session_id": 0, "prompts": ["a", "b"], "completions": ["x", "y"]}
    found = trace(tmp_path / "t.jsonl", row)
    assert [(job.turn, job.session, bytes(list(job.output))) for job in found.jobs] == [
        (1, "0", b"x"),
        (2, "0", b"y"),
    ]
    assert len(trace(tmp_path / "t.jsonl", row | {"completions": None}).jobs) == 1


LOG = {"call_type": "acompletion", "prompt_tokens": 900, "completion_tokens": 30, "trace_id": "t"}


@pytest.mark.parametrize(
    "more",
    [{}, {"messages": "redacted-by-litellm"}, {"messages": {}},
     {"messages": [{"role": "user", "content": "redacted-by-litellm"}]}],
    ids=["none", "text", "object", "message"],
)  # fmt: skip
def test_a_log_without_texts_has_lengths(tmp_path: Path, more: dict[str, Any]) -> None:
    rows = [LOG | more | {"startTime": f"2025-01-01T00:00:0{i}Z"} for i in range(2)]
    found = trace(tmp_path / "t.jsonl", *rows)
    assert [(job.at, job.num_tokens, job.num_output, job.session) for job in found.jobs] == [
        (0, 900, 30, "t"),
        (1, 900, 30, "t"),
    ]
    assert found.read_as == "litellm, ISO times"


def test_a_logged_answer_is_what_the_next_turn_contains(tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "The Po."}}]}
    said = [*ASKED, {"role": "assistant", "content": "The Po."}, {"role": "user", "content": "More?"}]
    rows = [
        LOG | {"startTime": 1.76e9, "messages": ASKED, "response": answer},
        LOG | {"startTime": 1.76e9 + 9.5, "messages": said, "response": answer},
    ]
    first, second = trace(tmp_path / "t.jsonl", *rows).jobs
    whole = [*first.tokens(), *first.output]
    assert bytes(list(first.output)) == b"The Po." and list(second.tokens())[: len(whole)] == whole
    assert second.at == pytest.approx(9.5)


@pytest.mark.parametrize(
    "bad", [{"messages": 3}, {"prompt": 7}, {"messages": [{"role": []}]}, {"prompt": [{}]}]
)
def test_a_broken_body_is_skipped(tmp_path: Path, bad: dict[str, Any]) -> None:
    found = trace(tmp_path / "t.jsonl", CHAT, bad, {"messages": []}, is_strict=False)
    assert (len(found.jobs), found.num_skipped, found.num_empty) == (1, 1, 1)


def test_a_batch_of_anthropic_has_bodies_in_params(tmp_path: Path) -> None:
    found = trace(tmp_path / "t.jsonl", {"custom_id": "a", "params": CHAT})
    (job,) = found.jobs
    assert found.read_as.startswith("batch, ") and bytes(list(job.tokens())) == TEXT


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("a", [b"user: a\n"]),
        (["a", "b"], [b"user: a\n", b"user: b\n"]),
        ([1, 2], [b"\1\2"]),
        ([[1], [2]], [b"\1", b"\2"]),
    ],
    ids=["text", "texts", "ids", "lists"],
)
def test_inputs_of_embeddings_are_texts_or_token_ids(
    tmp_path: Path, given: object, tokens: list[bytes]
) -> None:
    row = {"custom_id": "a", "url": "/v1/embeddings", "body": {"model": "m", "input": given}}
    jobs = trace(tmp_path / "t.jsonl", row).jobs
    assert [bytes(list(job.tokens())).removesuffix(b"assistant: ") for job in jobs] == tokens


def test_bodies_may_stand_in_a_list_and_messages_come_before_a_prompt(tmp_path: Path) -> None:
    found = trace(tmp_path / "t.jsonl", {"data": [CHAT, CHAT | {"prompt": "Name a river."}]})
    assert [bytes(list(job.tokens())) for job in found.jobs] == [TEXT, TEXT]
