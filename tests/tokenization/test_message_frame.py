"""Frames around plain messages: found where a template only prints the content."""

import pytest

from gateway.tokenization.chat_template import Message
from gateway.tokenization.message_frame import PROBES, MessageFrame, frame_of, plain_content, user


def test_a_template_that_prints_the_content_has_a_frame() -> None:
    stripping = frame_of(lambda message: f"<u>{message['content'].strip()}</u>\n")
    assert stripping == MessageFrame("<u>", "</u>\n", True)
    assert stripping.around(" a \n") == "<u>a</u>\n"
    verbatim = frame_of(lambda message: f"<u>{message['content']}</u>\n")
    assert verbatim == MessageFrame("<u>", "</u>\n", False)
    assert verbatim.around(" a \n") == "<u> a \n</u>\n"


@pytest.mark.parametrize(
    "render",
    [
        lambda text: f"[{text.upper()}]",
        lambda text: f"[{text[:100]}]",
        lambda text: f"[{text}]({len(text)})",
        lambda text: f"[{text}] again: [{text}]",
        lambda text: f"[{text}]" if len(text) < 1000 else f"[{text}]: that is long",
        lambda text: "[" + text.replace("<", "&lt;") + "]",
        lambda text: "[" + " ".join(text.split()) + "]",
        lambda text: f"[{text}]" if text[0].isalpha() else "?",
        lambda text: f"[{text.lstrip()}]",
        lambda text: f"[{text.rstrip(chr(10))}]",
        lambda text: None,
    ],
)
def test_a_template_that_changes_the_content_has_no_frame(render: object) -> None:
    assert frame_of(lambda message: render(message["content"])) is None  # type: ignore[operator]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "a", "name": "n"},
        user(" \n\u3000"),
        user(""),
    ],
)
def test_messages_with_more_than_text_are_not_plain(message: Message) -> None:
    assert plain_content(message) is None


def test_probes_are_plain() -> None:
    assert [plain_content(user(probe)) for probe in PROBES] == list(PROBES)
