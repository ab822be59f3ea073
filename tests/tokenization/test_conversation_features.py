"""Features of messages, by which a conversation is cut or not."""

import pytest

from gateway.tokenization import conversation_features
from gateway.tokenization.chat_template import Message, conversation
from gateway.tokenization.conversation_features import (
    CALLS,
    IRREGULAR,
    LATE_SYSTEM,
    MARKED_CALL,
    NAMED,
    ODD,
    REASONING,
    REGULAR,
    SAID,
    UNUSUAL,
    USER,
    features,
)
from gateway.tokenization.template_reading import Markup
from tests.support.corpus import answer, assistant, call, system, text_part, user

MARKUP = Markup(("<a>", "<t>"), ("<t>",))


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([user("x")], USER),
        ([user("x"), assistant("y")], USER),
        ([system("x")], 0),
        ([user("x"), system("y")], USER | LATE_SYSTEM),
        ([user("x"), user("y")], USER | IRREGULAR),
        ([assistant("x")], IRREGULAR),
        ([user("x"), assistant(None, tool_calls=[call("f", "{}")])], USER | CALLS),
        ([user("x"), assistant("", tool_calls=[call("f", "{}")])], USER | CALLS),
        ([user("x"), assistant("now", tool_calls=[call("f", "{}")])], USER | CALLS | SAID),
        ([user("x"), assistant("\n", tool_calls=[call("f", "{}")])], USER | CALLS | SAID),
        ([user("x"), assistant("<t>", tool_calls=[call("f", "{}")])], USER | CALLS | SAID | MARKED_CALL),
        ([user("x"), answer("r")], USER | CALLS | IRREGULAR),
        ([user("x"), assistant("y", reasoning="z")], USER | REASONING),
        ([user("x"), assistant("<t>")], USER | conversation_features.MARKUP),
        ([user("x"), assistant("y", reasoning="<t>")], USER | REASONING | conversation_features.MARKUP),
        ([user("x", name="n")], USER | NAMED),
    ],
)
def test_features(messages: list[Message], found: int) -> None:
    assert features(conversation(messages, "string"), "", MARKUP) == found
    assert features(conversation(messages, "openai"), "", MARKUP) == found


@pytest.mark.parametrize(
    "message",
    [
        user("a <t>"),
        user("<a>"),
        assistant("<a>"),
        system("<a>"),
        answer("<t>"),
        {"role": "developer", "content": "x"},
        {"role": "critic", "content": "x"},
        user("x", task="t"),
        assistant("x", reasoning=5),
        answer("x") | {"tool_call_id": 5},
        assistant(None, tool_calls=[call("f", "{}", index=0)]),
        assistant(None, tool_calls=[{"function": {"name": "f", "arguments": "{}", "more": 1}}]),
        assistant(None, tool_calls=[{"function": {"name": 5}}]),
    ],
)
def test_messages_without_a_known_feature_are_odd(message: Message) -> None:
    assert features(conversation([message], "string"), "", MARKUP) & ODD


def test_parts_with_more_than_text_are_odd() -> None:
    plain = conversation([user([text_part("a"), text_part("b")])], "openai")
    cached = conversation([user([text_part("a", cache_control={})])], "openai")
    assert not features(plain, "", MARKUP) & ODD
    assert features(cached, "", MARKUP) & ODD
    split = conversation([user([text_part("<"), text_part("a>")])], "string")
    assert not features(split, "", MARKUP) & ODD


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "reasoning_content": "r"},
        {"role": "tool", "content": "x", "tool_calls": [call("f", "{}")]},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ],
)
def test_fields_that_no_probe_has_in_that_role_are_odd(message: Message) -> None:
    """Engines that pass on what they are given have such messages."""
    assert features([message], "user", MARKUP) & ODD


@pytest.mark.parametrize("first", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("second", ["system", "user", "assistant", "tool"])
def test_roles_follow_each_other_as_in_a_table_or_are_odd(first: str, second: str) -> None:
    found = features([{"role": second, "content": "x"}], first, MARKUP)
    assert bool(found & ODD) is ((first, second) not in REGULAR | UNUSUAL)
    assert bool(found & IRREGULAR) is ((first, second) in UNUSUAL)


@pytest.mark.parametrize("given", ["exactly this", " exactly this\n", "Exactly This <T>"])
def test_a_text_that_the_template_may_compare_is_odd(given: str) -> None:
    markup = Markup(("<t>",), (), frozenset({"exactly this"}), folds=True)
    assert features([user(given)], "", markup) & ODD
    assert not features([user("not exactly this")], "", markup) & ODD
