"""Cost of rendering a conversation, by the number of its messages: measured for each template, in the units
of its budget (`sandbox/render_budget.py`), so that it is the same on every machine.

    units  =  fixed + per message · messages + per pair · messages²

Some templates look through all messages for each of them; the bytes of a conversation do not show that.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gateway.tokenization.chat_template import Message, PromptError, TooCostly

SIZES: Final = (5, 9, 17)
"""Messages of the conversations that are measured."""
INLINE_UNITS: Final = 20_000
"""Units of a rendering on the event loop: 2 ms at most. A chat may be rendered twice, as a whole and behind
its cuts, and a known one is tried to continue before."""
MAX_INLINE_PARTS: Final = 1024
"""Messages, parts and calls of a chat on the event loop, with any template: each is read for itself before,
in some 2 us."""
MIN_INLINE_PARTS: Final = 8
UNKNOWN_PARTS: Final = 64
"""Parts with a template that rejects all that is measured."""

Measure = Callable[[Sequence[Message]], int]
"""Renders messages, and returns the units that this took. Raises PromptError or TooCostly."""


class RenderCost(NamedTuple):
    """Units of a rendering: fixed ones, those of each message, and those of each two."""

    fixed: float
    per_message: float
    per_pair: float

    def units(self, num_messages: int) -> float:
        return self.fixed + self.per_message * num_messages + self.per_pair * num_messages**2

    def most(self, units: float) -> int:
        """Largest number of messages, up to MAX_INLINE_PARTS, that takes no more than these units."""
        low, high = 0, MAX_INLINE_PARTS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.units(middle) <= units else (low, middle - 1)
        return low


def cost_through(units: Sequence[int]) -> RenderCost:
    """Cost by what conversations of SIZES took."""
    few, some, many = SIZES
    first = (units[1] - units[0]) / (some - few)
    second = (units[2] - units[1]) / (many - some)
    per_pair = max(0.0, (second - first) / (many - few))
    per_message = max(1.0, second - per_pair * (many + some))
    return RenderCost(max(0.0, units[2] - per_message * many - per_pair * many**2), per_message, per_pair)


def most_messages(measure: Measure) -> int:
    """Messages that a template renders on the event loop: of the dearest kind of conversation."""
    most: list[int] = []
    for kind in _kinds():
        try:
            units = [measure(kind(size)) for size in SIZES]
        except PromptError:
            continue  # the template rejects such a conversation
        except TooCostly:
            return MIN_INLINE_PARTS
        most.append(cost_through(units).most(INLINE_UNITS))
    return max(min(most, default=UNKNOWN_PARTS), MIN_INLINE_PARTS)


def _kinds() -> list[Callable[[int], list[Message]]]:
    """Conversations of a number of messages: of questions, of turns, of an agent's steps."""
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}

    return [
        lambda num: num * [asked],
        lambda num: [*(num // 2) * [asked, said], asked],
        lambda num: [asked, *(each for i in range(num // 2) for each in _step(i))],
    ]


def _step(number: int) -> list[Message]:
    name = f"call{number:05}"
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thought = {"reasoning": "r", "reasoning_content": "r"}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call], **thought},
        {"role": "tool", "content": "a", "tool_call_id": name},
    ]
