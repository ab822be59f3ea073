"""What a template puts around one plain message of a user's, so that it is not run for each of them.

    frame  =  before · content · after

It is found by rendering PROBES, which must all come out so. A template may ask of a content whether it is
there, how long it is, and whether it holds certain words: PROBES differ in length and in all that a filter
could change, and a message with one of the template's own words is not plain (`stability.features`). As for
cuts, one prompt in some hundred is rendered all the same and compared (`prompt.CHECK_EVERY`).
"""

from collections.abc import Callable
from typing import NamedTuple

from gateway.tokenization.chat_template import Message

PROBES = (
    "q",
    "kvgate asks: Was it 7, or 10?",
    "Two  spaces,\n\n\ttabs & 'lines' \"quoted\" 100% \\n <b>of HTML</b> {x} $y `z`",
    "École ß İ 漢字 😀 e\u0301",
    "word " * 2000 + "end",
    "0",
)
"""Neither begins nor ends with white space."""

SPACED = (" q", "q\n", "\n\t q r \u3000\n")
"""All are stripped, or none is."""


class Frame(NamedTuple):
    """`strips`: the template strips a content's white space, as most do."""

    before: str
    after: str
    strips: bool

    def around(self, content: str) -> str:
        return self.before + (content.strip() if self.strips else content) + self.after


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def frame_of(render: Callable[[Message], str | None]) -> Frame | None:
    """What `render` puts around a user's message; None where a probe comes out in another way."""
    sign = PROBES[1]
    text = render(user(sign))
    if text is None or text.count(sign) != 1:
        return None
    before, after = text.split(sign)
    for strips in (True, False):
        frame = Frame(before, after, strips)
        if all(render(user(probe)) == frame.around(probe) for probe in (*PROBES, *SPACED)):
            return frame
    return None


def plain_content(message: Message) -> str | None:
    """What a user says, where it is nothing but text, and more than white space."""
    content = message["content"]
    if type(content) is not str or message["role"] != "user" or len(message) != 2:
        return None
    return None if not content or content.isspace() else content
