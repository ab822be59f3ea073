import pytest

from gateway.replay.formats.messages import ChatTokens, jobs_of_chat, messages_of, text_of
from gateway.replay.formats.reading import UNKNOWN_OUTPUT, EmptyPrompt, RowProblem, TraceOptions, TraceReading


def chat() -> ChatTokens:
    return ChatTokens(TraceReading(TraceOptions(encode=lambda text: list(text.encode()))), "m", "s")


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a river."},
    {"from": "gpt", "value": "The Rhine."},
    {"from": "human", "value": "Another?"},
    {"role": "assistant", "content": "The Po."},
]


def test_each_answer_of_a_conversation_is_a_request_that_continues_the_one_before() -> None:
    first, second = jobs_of_chat(chat(), messages_of(TALK), 3.0)
    assert bytes(list(first.output)) == b"The Rhine." and first.num_output == 10
    assert list(second.tokens())[: first.num_tokens + 10] == [*first.tokens(), *first.output]
    assert second.turn == 2 and bytes(list(second.tokens())).endswith(b"Another?\nassistant: ")
    assert (first.at, first.session, first.model) == (3.0, "s", "m")


def test_an_open_question_is_a_request_of_an_answer_of_unknown_length() -> None:
    *_, last = jobs_of_chat(chat(), messages_of([*TALK, {"role": "user", "content": "More?"}]), 0.0)
    assert (last.num_output, last.turn, list(last.output)) == (UNKNOWN_OUTPUT, 3, [])
    assert len(jobs_of_chat(chat(), messages_of([*TALK, {"role": "user", "content": "?"}]), 0.0, False)) == 2


def test_a_conversation_that_begins_with_an_answer_asks_later() -> None:
    assert len(jobs_of_chat(chat(), messages_of(TALK[2:]), 0.0)) == 1
    assert jobs_of_chat(chat(), messages_of(TALK[2:3]), 0.0) == []


def test_texts_of_all_parts_are_kept_and_other_parts_are_marked() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:1"}}
    other = {"type": "image_url", "image_url": {"url": "data:2"}}
    assert text_of([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]) == "a\nb"
    assert text_of([image]) == text_of([image]) != text_of([other])
    assert "data" not in text_of([image])
    assert text_of(None) == "" and text_of({"a": 1}) == '{"a":1}'


@pytest.mark.parametrize("bad", ["x", [1], [{"role": 3}], {"a": 1}])
def test_other_shapes_are_a_problem_of_the_row(bad: object) -> None:
    with pytest.raises(RowProblem, match="no messages"):
        messages_of(bad)


def test_nothing_said_is_an_empty_prompt() -> None:
    with pytest.raises(EmptyPrompt):
        chat().ask()
    with pytest.raises(RowProblem, match="no token ids"):
        chat().add_tokens([-1])


CALL_ITEMS = [
    {"role": "user", "content": "Go."},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Think."}]},
    {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"},
    {"type": "function_call_output", "call_id": "c", "output": "Found."},
]
CALL_PARTS = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Think.", "signature": "x"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "Found."}]},
]
CALL_FUNCTION = [
    {"role": "user", "content": "Go. Think."},
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
    {"role": "function", "name": "look", "content": "Found."},
]


@pytest.mark.parametrize("said", [CALL_ITEMS, CALL_PARTS, CALL_FUNCTION], ids=["items", "parts", "function"])
def test_calls_and_their_results_are_part_of_a_prompt(said: list[dict[str, object]]) -> None:
    texts = " ".join(f"{message.speaker}: {message.text}" for message in messages_of(said))
    assert [word for word in ("Think.", "look", "Found.") if word not in texts] == []
    assert [message.is_answer for message in messages_of(said)].count(True) in (1, 2)
    assert not messages_of(said)[-1].is_answer
