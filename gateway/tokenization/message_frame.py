"""Frame of a plain user message: the text that a template puts around it, so that it need not run for each.

    frame  =  before · content · after

It is found by rendering PROBES, which must all fit the frame. A template may test a content for being there,
its length, and certain words: PROBES differ in length and in all that a filter could change, and a message
with one of the template's own words is not plain (`template_stability.features`). As for cuts, one prompt in
some hundred is rendered all the same and compared (`prompt_encoder.CHECK_EVERY`).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.tokenization.chat_template import Message

PROBES: Final[tuple[str, ...]] = (
    "q",
    "kvgate asks: Was it 7, or 10?",
    "Two  spaces,\n\n\ttabs & 'lines' \"quoted\" 100% \\n <b>of HTML</b> {x} $y `z`",
    "École ß İ 漢字 😀 e\u0301",
    "word " * 2000 + "end",
    "0",
)
"""Probes without white space at either end."""

SPACED: Final[tuple[str, ...]] = (" q", "q\n", "\n\t q r \u3000\n")
"""Probes with white space around them: all are stripped, or none is."""


class MessageFrame(NamedTuple):
    """Text before and after a user's content; `strips` if the template strips its white space, as most do."""

    before: str
    after: str
    strips: bool

    def around(self, content: str) -> str:
        return self.before + (content.strip() if self.strips else content) + self.after


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def frame_of(render: Callable[[Message], str | None]) -> MessageFrame | None:
    """Frame that `render` puts around a user's message; None where a probe does not fit."""
    sign = PROBES[1]
    text = render(user(sign))
    if text is None or text.count(sign) != 1:
        return None
    before, after = text.split(sign)
    for strips in (True, False):
        frame = MessageFrame(before, after, strips)
        if all(render(user(probe)) == frame.around(probe) for probe in (*PROBES, *SPACED)):
            return frame
    return None


def plain_content(message: Message) -> str | None:
    """Content of a user message that is nothing but text and not only white space; None for others."""
    content = message["content"]
    if type(content) is not str or message["role"] != "user" or len(message) != 2:
        return None
    return None if not content or content.isspace() else content
