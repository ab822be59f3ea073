from typing import Any

import pytest

from gateway.observability.cache_loss.break_location import (
    MAX_SHOWN_TOKENS,
    describe_break,
    kind_of,
    message_at,
)

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. It is 09:27. "},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "image_url", "image_url": {}}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "Hi."},
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("09:27:00", "date or time"),
        ("2026-11-21", "date or time"),
        ("21/11/2026,", "date or time"),
        ("1763726400", "date or time"),
        ("550e8400-e29b-41d4-a716-446655440000", "identifier"),
        ("deadbeef01", "identifier"),
        ("deadbeef01-2345", "identifier"),
        ("deadbeef-01", "words"),
        ("42", "number"),
        ("#1,234.5", "number"),
        ("Alice", "words"),
        ("facade", "words"),
        ("  ", "unknown"),
    ],
)
def test_kinds_of_text(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("before", "index"),
    [
        ("<s>", 0),
        ("<s>Be brief. It is 09:", 0),
        ("<s>Be brief. It is 09:27.<u>H", 1),
        ("<s>Be brief. It is 09:27.<u>Hi.<a>", 3),
        ("<s>Be brief. It is 09:27.<u>Hi.<a><u>Hi.</u>", None),
    ],
)
def test_the_first_incomplete_message_is_named(before: str, index: int | None) -> None:
    assert message_at(CHAT, before) == index


def test_a_break_is_described_without_its_text_unless_that_is_allowed() -> None:
    texts = ["<s>Be brief. It is 09:", "27", ".<u>"]
    found = describe_break(9, 1, texts, CHAT, shows_text=False)
    assert (found.token, found.message, found.role, found.kind) == (9, 0, "system", "date or time")
    assert found.text is None
    assert describe_break(9, 1, texts, CHAT, shows_text=True).text == "09:27."


def test_without_text_only_the_token_is_named() -> None:
    found = describe_break(9, 1, [], CHAT, shows_text=True)
    assert (found.token, found.message, found.role, found.kind, found.text) == (
        9,
        None,
        None,
        "unknown",
        None,
    )


def test_a_long_difference_is_another_text() -> None:
    assert describe_break(9, MAX_SHOWN_TOKENS + 1, ["", "1", ""], (), shows_text=False).kind == "text"


@pytest.mark.parametrize(
    "text", ["1a" * 5000 + ".", "1" + "." * 50_000 + "x", "1-" * 20_000, "a" * 100_000 + " "]
)
def test_no_text_takes_long(text: str) -> None:
    """Texts of slow comparisons: the first took longer than any timeout; the others seconds."""
    kind_of(text)
    describe_break(0, 1, [text, text, text], (), shows_text=False)


def test_a_custom_role_is_not_shown() -> None:
    found = describe_break(0, 1, ["", "x", ""], [{"role": "a secret", "content": "x"}], shows_text=False)
    assert (found.message, found.role) == (0, None)


def test_an_invalid_role_is_not_shown() -> None:
    found = describe_break(0, 1, ["", "x", ""], [{"role": 7, "content": "x"}], shows_text=False)
    assert (found.message, found.role) == (0, None)
