import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.workloads.bodies import (
    STREAMED,
    STREAMED_WITH_USAGE,
    Bodies,
    Texts,
    grow,
    new,
    parse,
    small,
    warm,
)

TEXTS = Texts("m", seed=3)


def read(bodies: Bodies) -> list[dict[str, Any]]:
    return [json.loads(bodies[i]) for i in range(len(bodies))]


def test_a_file_has_the_bodies_that_were_written(tmp_path: Path) -> None:
    bodies = Bodies()
    head, end = bodies.piece(b'{"a":"'), bodies.piece(b'"}')
    bodies.body(head, bodies.piece("é".encode()), end)
    bodies.body(head, end)
    bodies.write(tmp_path / "file")
    written = (tmp_path / "file").read_bytes()
    assert written == 'P {"a":"\nP "}\nP é\nB 0 2 1\nB 0 1\n'.encode()
    assert list(parse(written)) == [bodies[0], bodies[1]] == ['{"a":"é"}'.encode(), b'{"a":""}']


def test_a_piece_with_a_line_end_would_break_the_file() -> None:
    with pytest.raises(ValueError, match="line end"):
        Bodies().piece(b"a\nb")


def test_a_malformed_line_is_rejected() -> None:
    with pytest.raises(ValueError, match="neither"):
        list(parse(b"X 1\n"))


def test_a_conversation_ends_with_the_assistant_and_has_the_size_asked_for() -> None:
    messages = TEXTS.conversation(11, 16_000)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 5]
    assert sum(len(message["content"]) for message in messages) == pytest.approx(16_000, rel=0.01)


def test_warm_bodies_are_known_conversations_with_a_new_message_each() -> None:
    known = [TEXTS.conversation(9, 4_000) for _ in range(2)]
    bodies = read(warm(TEXTS, known, 6))
    for i, body in enumerate(bodies):
        assert body["messages"][:-1] == known[i % 2]
        assert body["messages"][-1]["role"] == "user"
    assert len({body["messages"][-1]["content"] for body in bodies}) == 6
    assert {len(body["messages"][-1]["content"]) for body in bodies} == {200}


def test_small_bodies_are_all_different_and_streamed_if_asked() -> None:
    bodies = small(TEXTS, 50)
    assert len({bodies[i] for i in range(50)}) == 50
    assert max(len(bodies[i]) for i in range(50)) < 350
    assert all(body["stream"] is True for body in read(small(TEXTS, 3, STREAMED)))
    assert "stream" not in read(bodies)[0]


def test_all_sizes_can_be_streamed_and_report_usage() -> None:
    known = [TEXTS.conversation(3, 900)]
    for bodies in (
        small(TEXTS, 1, STREAMED_WITH_USAGE),
        warm(TEXTS, known, 1, STREAMED_WITH_USAGE),
        new(TEXTS, 1, 900, STREAMED_WITH_USAGE),
    ):
        (body,) = read(bodies)
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_each_connection_extends_its_text_and_starts_over_from_a_known_one() -> None:
    documents = ["first document", "second document"]
    prompts = [body["prompt"] for body in read(grow(TEXTS, documents, 12, connections=2, num_steps=3))]
    for connection, document in enumerate(documents):
        of_connection = prompts[connection::2]
        assert [len(prompt) for prompt in of_connection] == [
            len(document) + 1024 * n for n in (1, 2, 3, 1, 2, 3)
        ]
        assert all(prompt.startswith(document) for prompt in of_connection)
        assert of_connection[1].startswith(of_connection[0])
        assert of_connection[2].startswith(of_connection[1])
        assert of_connection[3] not in of_connection[0]  # back at the beginning, and on in another way


def test_new_texts_share_no_beginning() -> None:
    prompts = [body["prompt"] for body in read(new(TEXTS, 5, 16_000))]
    assert len({prompt[:16] for prompt in prompts}) == 5
    assert all(12_000 < len(prompt) <= 16_000 for prompt in prompts)
